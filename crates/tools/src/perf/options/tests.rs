// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options: defaults, names, and what is refused.

use super::*;
use clap::Parser;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

pub(in super::super) fn parse(line: &str) -> Result<Plan, String> {
    let words = core::iter::once("perf").chain(line.split_whitespace());
    Line::try_parse_from(words).map_err(|e| e.to_string())?.args.resolve()
}

#[test]
fn defaults_are_those_of_perftest() {
    for (line, size, iters, tx_depth, rx_depth, cq_mod, inline) in [
        ("send-lat", 2, 1000, 1, 512, 1, 236),
        ("send-lat -c UD", 2, 1000, 1, 1000, 1, 188),
        ("send-bw", 65536, 1000, 128, 512, 1, 0),
        ("send-bw -s 1k -n 40", 1024, 40, 40, 40, 40, 0),
        ("write-lat", 2, 1000, 1, 1, 1, 220),
        ("write-lat -c DC", 2, 1000, 1, 1, 1, 150),
        ("read-lat -c DC", 2, 1000, 1, 1, 1, 0),
        ("write-bw", 65536, 5000, 128, 1, 1, 0),
        ("write-bw -s 64 -l 4", 64, 5000, 128, 1, 4, 0),
        ("write-bw -a", 1 << 23, 5000, 128, 1, 100, 0),
        ("read-lat", 2, 1000, 1, 1, 1, 0),
        ("read-bw", 65536, 1000, 128, 1, 1, 0),
        ("atomic-lat", 8, 1000, 1, 1, 1, 0),
        ("atomic-bw", 8, 1000, 128, 1, 100, 0),
    ] {
        let plan = parse(line).unwrap();
        let found = (plan.size, plan.iters, plan.tx_depth, plan.rx_depth, plan.cq_mod, plan.inline_size());
        assert_eq!(found, (size, iters, tx_depth, rx_depth, cq_mod, inline), "{line}");
    }
}

#[test]
fn short_and_long_flags_mean_the_same() {
    let short = parse(
        "send-bw -d rxe0 -i 2 -x 1 -p 7 -s 8 -n 60 -c UC -m 256 -S 3 -u 20 -t 30 -r 9 -I 4 -e -X 1 -F -q 2 -l 6 -Q 3 \
         -b -N host",
    );
    let long = parse(
        "send-bw --ib-dev rxe0 --ib-port 2 --gid-index 1 --port 7 --size 8 --iters 60 --connection=uc --mtu 256 \
         --sl 3 --qp-timeout 20 --tx-depth 30 --rx-depth 9 --inline_size 4 --events --vector 1 --CPU-freq --qp 2 --post_list 6 \
         --cq-mod 3 --bidirectional --noPeak host",
    );
    assert_eq!(format!("{:?}", short.unwrap()), format!("{:?}", long.unwrap()));
    let plan = parse("read-lat -D 8 -f 1 -H -U -o 5").unwrap();
    assert_eq!(plan.common.outs, Some(5));
    let seconds = Duration::from_secs;
    assert_eq!(plan.duration, Some(Span { total: seconds(8), margin: seconds(1) }));
    assert_eq!(parse("read-lat -D 2").unwrap().duration.unwrap().margin, Duration::from_millis(500));
    assert!(plan.each_sorted && plan.each_unsorted);
    assert_eq!(parse("atomic-lat -A CMP_AND_SWAP").unwrap().common.atomic_type, Some(AtomicType::CmpAndSwap));
}

#[test]
fn invalid_options_are_refused() {
    for line in [
        "",
        "send",
        "send-bw -n 4",
        "send-bw -s 0",
        "send-bw -s 0x40000001",
        "send-bw -s 8 -a",
        "send-bw -n 10 -l 4",
        "send-bw -t 4 -l 8",
        "send-bw -l 8 -Q 3",
        "send-bw -D 2 -f 1",
        "send-bw -D 2 -n 10",
        "send-bw -D 2 -a",
        "send-bw -f 1",
        "write-lat -c SRD",
        "send-bw -c SRD --use-srq",
        "atomic-lat -c SRD",
        "write-bw -c DC -R",
        "send-lat -q 2",
        "write-bw -c UD",
        "write-bw --use-srq",
        "write-bw --recv_post_list 4",
        "send-bw -r 10 --recv_post_list 4",
        "send-lat --recv_post_list 4",
        "send-bw -X 1",
        "send-bw --flow_label 1048576",
        "write-lat -e",
        "read-bw -c UC",
        "read-bw -c UD",
        "atomic-bw -s 16",
        "atomic-bw -a",
        "write-bw -S 16",
        "write-bw -u 32",
        "write-bw -m 1000",
        "write-bw -w nan",
        "write-bw -y inf",
        "write-bw --loopback host",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}

#[test]
fn the_server_waits_for_the_whole_test() {
    let limit = |line| parse(line).unwrap().patience_of_exchange().map(|limit| limit.as_secs());
    for (line, seconds) in [
        ("write-bw -D 100 --timeout 9", Some(109)),
        ("write-bw -D 100 --timeout 9 host", Some(9)),
        ("write-bw -D 100 --timeout 9 -b", Some(9)),
        ("write-lat -D 100 --timeout 9", Some(9)),
        ("read-lat -D 100 --timeout 9", Some(109)),
        ("atomic-bw --timeout 9", None),
        ("send-bw --timeout 9", Some(9)),
        ("read-bw -D 100 --timeout 0", None),
    ] {
        assert_eq!(limit(line), seconds, "{line}");
    }
}

#[test]
fn errors_name_the_option() {
    for (line, text) in [
        ("read-bw -c UC", "--connection UC has no read"),
        ("write-lat -c UD", "--connection UD has no write"),
        ("atomic-bw -s 16", "--size 16: an atomic has 8 bytes"),
        ("atomic-lat -a", "--all is not for atomics, which have 8 bytes"),
        ("write-lat -e", "--events: write-lat polls memory, so it has no events"),
        ("write-bw -r 8", "--rx-depth is for sends"),
        ("read-bw -I 8", "--inline_size is for sends and writes"),
        ("send-lat -o 4", "--outs is for reads and atomics"),
        ("write-lat -A CMP_AND_SWAP", "--atomic_type is for atomics"),
    ] {
        assert_eq!(parse(line).unwrap_err(), text, "{line}");
    }
    let error = parse("send-bw -c UD -s 2048").unwrap().sizes(1024).unwrap_err();
    assert_eq!(error, "--size 2048: the longest datagram has 1024 bytes");
}

#[test]
fn datagrams_fit_into_the_mtu() {
    let plan = |line| parse(line).unwrap();
    assert_eq!(plan("send-bw -c UD -a").sizes(256).unwrap(), [2, 4, 8, 16, 32, 64, 128, 256]);
    assert_eq!(plan("send-bw -c UD").sizes(1024).unwrap(), [1024]);
    assert!(plan("send-bw -c UD -s 2048").sizes(1024).is_err());
    assert_eq!(plan("write-bw -a").sizes(1024).unwrap().last(), Some(&(1 << 23)));
}

/// The options of perftest 6.06, by their long names.
const OF_PERFTEST: &str = "all bidirectional connection log_dci_streams log_active_dci_streams aes_xts encrypt_on_tx sig_before \
    aes_block_size data_enc_keys_number kek_path credentials_path data_enc_key_app_path ib-dev duration events vector margin \
    CPU-freq mcg help ib-port inline_size post_list recv_post_list hop_limit mtu MGID iters noPeak dualport port qp cq-mod rx-depth \
    rdma_cm size sl tx-depth tos qp-timeout version limit_bw report-counters gid-index limit_msgrate comm_rdma_cm out_json \
    out_json_file cpu_util dlid dont_xchg_versions force-link inline_recv use-srq ipv6 source_ip mmap mmap-offset mr_per_qp odp \
    output use_old_post_send perform_warm_up pkey_index report-both report_gbits report-per-port reversed run_infinitely \
    retry_count tclass use_hugepages wait_destroy disable_pcie_relaxed burst_size typical_pkt_size rate_limit rate_units \
    rate_limit_type report-cycles report-histogram report-unsorted latency_gap outs atomic_type flow_label";

#[test]
fn options_of_perftest_are_accepted_or_documented_as_missing() {
    let commands = uverbs_book::reference("commands.md");
    let table = commands.split("| perftest's options |").nth(1).unwrap();
    let mut command = <Line as clap::CommandFactory>::command();
    command.build();
    let tests: Vec<_> = command.get_subcommands().filter(|test| test.get_name() != "help").collect();
    assert_eq!(tests.len(), 8);
    for option in OF_PERFTEST.split_whitespace() {
        let has = |test: &&clap::Command| test.get_arguments().any(|arg| arg.get_long() == Some(option));
        let is_accepted = tests.iter().copied().any(|test| has(&test));
        let is_own = matches!(option, "help" | "version");
        assert!(is_accepted || is_own || table.contains(&format!("`--{option}`")), "--{option}");
    }
}
