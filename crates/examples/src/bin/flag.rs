// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program with an ordering bug, and its repaired form: a record is written by one WRITE, and the last word of it tells that it is
//! complete. The InfiniBand specification does not promise that the last bytes arrive last. `docs/src/guides/order.md` finds the bug.
#![forbid(unsafe_code)]

use anyhow::{Result, ensure};
use clap::Parser;
use core::hint::spin_loop;
use core::sync::atomic::Ordering;
use uverbs::attr::AccessFlags;
use uverbs::wr::ImmData;
use uverbs::{ConnectAttr, Done, Rc};

/// Bytes of a record: four lines of the cache.
const RECORD: u32 = 256;

/// Writes records into a mailbox, and reads each when it is complete
#[derive(Debug, Parser)]
#[command(name = "flag", version)]
struct Cli {
    /// Waits for a completion instead of polling on the last word of the record
    #[arg(long)]
    repaired: bool,
    /// The number of records
    #[arg(short = 'n', long, default_value_t = 20)]
    records: u64,
    /// The device; hca0 is a software NIC
    #[arg(short, long, default_value = "hca0")]
    device: String,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let context = uverbs::open(&cli.device)?;
    let (pd, attr) = (context.alloc_pd()?, ConnectAttr::new().access(AccessFlags::REMOTE_WRITE));
    let mut cq = context.cq(16)?;
    let mut qp = pd.qp::<Rc>().cq(&cq).depth(4, 4).create()?;
    // Both ends are in this program: the QP is connected to itself.
    qp.init(&attr)?;
    let endpoint = qp.control().endpoint(0, &attr)?;
    qp.connect(&endpoint, &endpoint, &attr)?;

    let pool = pd.pool(4, RECORD)?;
    let mailbox = pd.pool_with(1, RECORD).exposed(AccessFlags::REMOTE_WRITE).build()?.get()?;
    let to = mailbox.remote_region();
    let last = mailbox.atomic_u64(RECORD as usize - 8)?;

    for number in 1..=cli.records {
        let mut record = pool.get()?;
        record.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&number.to_ne_bytes()));
        let mut is_written = false;
        if cli.repaired {
            // The completion of the receive comes after the data.
            qp.recv(pool.get()?)?;
            qp.sq().post(number).signaled().write_imm(record, &to, ImmData::new(0))?;
            while !matches!(cq.wait()?.ok()?, Done::WrittenByPeer(..)) {
                is_written = true;
            }
        } else {
            // The bug: other parts of the record may arrive after the last word.
            qp.write(record, &to)?;
            while last.load(Ordering::Acquire) != number {
                spin_loop();
            }
        }
        for at in (0..RECORD as usize).step_by(8) {
            let found = mailbox.atomic_u64(at)?.load(Ordering::Relaxed);
            ensure!(
                found == number,
                "record {number} has the number {found} at byte {at}: it is not complete"
            );
        }
        if !is_written {
            drop(cq.wait()?.ok()?);
        }
    }
    println!("{} records", cli.records);
    Ok(())
}
