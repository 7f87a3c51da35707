// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks that wait for a buffer of a pool.

use crate::bed::{Bed, Task, join, poll_once};
use uverbs_aio::Error;

#[test]
fn tasks_wait_for_the_buffers_of_others() {
    const MESSAGES: u32 = 30;
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let pool = a.pd.pool(2, 64).unwrap();
    let sender = || -> Task<'_> {
        Box::pin(async {
            for i in 0..MESSAGES {
                let mut buf = pool.acquire_async().await.unwrap();
                buf.fill(&i.to_ne_bytes()).unwrap();
                drop(a.qp.send(buf).await.map_err(Error::from)?);
            }
            Ok(())
        })
    };
    let mut tasks: Vec<Task<'_>> = (0..4).map(|_| sender()).collect();
    tasks.push(Box::pin(async {
        let mut sum = 0;
        for _ in 0..4 * MESSAGES {
            sum += u32::from_ne_bytes(b.qp.recv().await?[..].try_into().unwrap());
        }
        assert_eq!(sum, 4 * MESSAGES * (MESSAGES - 1) / 2);
        Ok(())
    }));
    bed.run(join(tasks)).unwrap();
    // Tasks that end while they wait, or when they have been given a buffer.
    let bufs = [pool.get().unwrap(), pool.get().unwrap()];
    let mut waits = [(); 3].map(|()| pool.acquire_async());
    assert!(waits.iter_mut().all(|wait| poll_once(wait).is_pending()));
    let [first, second, mut last] = waits;
    drop(second);
    drop(bufs);
    drop(first);
    assert!(poll_once(&mut last).is_ready());
    drop(last);
    assert_eq!(pool.available(), 2);
    a.assert_no_leak(crate::bed::DEPTH);
}
