// SPDX-License-Identifier: MIT OR Apache-2.0
//! A row: a program with its arguments, the way in which it names its device and its peer, and where it runs.

use crate::native::LIMIT;
use Family::{
    Cm, Connect, EfaFabric, Endless, Ethernet, Fabric, Fio, Harness, Mpi, Mpich, Multicast, Perftest,
    Pingpong, Plain, Qperf, Rma, Rping, Rpma, Single, Ucp, Uct, Udaddy, Watch, Wheel,
};
use Place::{Efa, Ib, Native, NativeEfa, Roce, Rxe, Siw};
use core::time::Duration;

/// The way in which programs name their device, port and peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// One process: `ibv_devinfo`.
    Single,
    /// One process that has no option for the device: it uses the first one, or all.
    Plain,
    /// A test program of Rust's harness, which has no such option either.
    Harness,
    /// `ibv_*_pingpong`, and programs with the same options.
    Pingpong,
    /// perftest.
    Perftest,
    /// `rping`: a server's address is an option.
    Rping,
    /// librdmacm's programs whose client names the server with `-s`.
    Cm,
    /// `cmtime`: as `Cm`, but the server does not end.
    Endless,
    /// `cmtime` of the crate sideway, and iSER: as `Endless`, with fewer options.
    Connect,
    /// `udaddy`: as `Cm`, but its port is fixed, and `-p` is the port space.
    Udaddy,
    /// `mckey`: as `Cm`, but both join the same group.
    Multicast,
    /// `ucx_perftest` on a transport of UCX.
    Uct,
    /// `ucx_perftest` on UCX's protocols, run by env(1): variables select the device and the transport.
    Ucp,
    /// libfabric's `fi_pingpong`, verbs provider.
    Fabric,
    /// The same with the provider efa.
    EfaFabric,
    /// `fi_rma` of this crate: the RMA of libfabric's verbs provider.
    Rma,
    /// `mpi_bench` of this crate, run by mpirun(1) in both guests of a pair. The first argument is the list of UCX's transports.
    Mpi,
    /// `mpich_bench`, the same program with MPICH, whose two ranks are in one guest. The first argument is the list of UCX's transports.
    Mpich,
    /// `fio` with its engine rdma, by librdmacm: the server reads, the client writes.
    Fio,
    /// `rpma_rw` of this crate: the operations of librpma, which connects by librdmacm.
    Rpma,
    /// A program of `py`, which uses the package of a wheel.
    Wheel,
    /// `qperf`: its client has all arguments. The server does not end.
    Qperf,
    /// `ibv_asyncwatch`: prints events of a port that goes down and up. It does not end.
    Watch,
    /// `raw_ethernet_bw`: its client does not wait for the server, so it is repeated until the server has every packet.
    Ethernet,
}

/// Where a row runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The software HCA in each process, without a kernel's device.
    Native,
    /// The software EFA in each process, without a kernel's device.
    NativeEfa,
    /// The kernel's software device.
    Rxe,
    /// The kernel's software device for iWARP.
    Siw,
    /// The kernel's mlx5 driver, RoCE.
    Roce,
    /// The kernel's mlx5 driver, InfiniBand.
    Ib,
    /// The kernel's efa driver.
    Efa,
}

/// The places of a row, and the reason why it does not run at the others.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// Where it runs.
    pub list: &'static [Place],
    /// Why not elsewhere; empty if it runs everywhere.
    pub why: &'static str,
}

/// Every place.
pub(crate) const EVERYWHERE: Places = Places { list: &[Native, Rxe, Siw, Roce, Ib], why: "" };
/// For programs that connect their QPs without librdmacm.
pub(crate) const EXCHANGE: Places =
    Places { list: &[Native, Rxe, Roce, Ib], why: "iWARP connects QPs by librdmacm only" };
/// Devices of mlx5.
pub(crate) const MLX5: Places =
    Places { list: &[Native, Roce, Ib], why: "rxe and siw lack XRC, DC and timestamps of completions" };
/// mlx5 devices of a kernel, for programs that do not run natively.
pub(crate) const MLX5_VM: Places =
    Places { list: &[Roce, Ib], why: "rxe and siw lack DC and the queues of mlx5 that UCX writes itself" };
/// EFA devices.
pub(crate) const EFA: Places =
    Places { list: &[NativeEfa, Efa], why: "its arguments are for EFA: SRD, its first GID" };
/// The software EFA, for libfabric's provider.
pub(crate) const EFA_FABRIC: Places = Places {
    list: &[NativeEfa],
    why: "the provider is for EFA; its packages are fetched for native runs only",
};
/// This machine, for packages of wheels.
pub(crate) const WHEELS: Places = Places {
    list: &[Native],
    why: "wheels are for the interpreter of this machine, on which they run without a VM",
};
/// With a kernel.
pub(crate) const VM: Places = Places { list: &[Rxe, Siw, Roce, Ib], why: "it needs a kernel's device" };
/// With a kernel, for programs that connect their QPs without librdmacm or use datagrams.
pub(crate) const VM_EXCHANGE: Places = Places {
    list: &[Rxe, Roce, Ib],
    why: "it needs a kernel's device; iWARP has no datagrams, and connects QPs by librdmacm only",
};
/// With a kernel, for rdma-core's test suite.
pub(crate) const SUITE: Places = Places {
    list: &[Rxe, Roce, Ib, Efa],
    why: "it needs a kernel's device; its tests connect QPs without librdmacm, which iWARP needs",
};
/// Where librdmacm can resolve addresses.
pub(crate) const ADDRESSES: Places = Places {
    list: &[Rxe, Siw, Roce],
    why: "librdmacm needs IPoIB and a subnet manager on InfiniBand, which the software HCA lacks",
};
/// The same, for programs that were not tried on iWARP.
pub(crate) const ADDRESSES_TRIED: Places = Places {
    list: &[Rxe, Roce],
    why: "librdmacm needs IPoIB and a subnet manager on InfiniBand, which the software HCA lacks; it was not tried on iWARP",
};
/// The same, for operations that iWARP does not have.
pub(crate) const ADDRESSES_IB: Places = Places {
    list: &[Rxe, Roce],
    why: "librdmacm needs IPoIB and a subnet manager on InfiniBand, which the software HCA lacks; \
        iWARP has no datagrams, groups, atomics or immediate data",
};

/// The set of packages with libfabric's programs, for the software EFA.
pub const LIBFABRIC: &str = "libfabric";

/// The program with NIXL's wheel, and the set of files that has it.
pub const NIXL: &str = "nixl";

/// The time limit of its rows, which take 6 seconds on an idle machine.
const NIXL_LIMIT: Duration = Duration::from_secs(240);

/// A program with its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The program.
    pub program: &'static str,
    /// Its arguments, besides those of its family.
    pub args: &'static str,
    /// How it names its device and its peer.
    pub family: Family,
    /// Where it runs.
    pub places: Places,
    /// Whether it is among the rows of a short run.
    pub short: bool,
}

/// A row.
pub(crate) const fn row(family: Family, program: &'static str, args: &'static str, places: Places) -> Row {
    Row { program, args, family, places, short: false }
}

/// A row that is among those of a short run.
pub(crate) const fn short(family: Family, program: &'static str, args: &'static str, places: Places) -> Row {
    Row { program, args, family, places, short: true }
}

/// The values that are inserted into the arguments of a family.
#[derive(Clone, Debug)]
pub struct Names {
    /// The device.
    pub device: String,
    /// Index of its GID.
    pub gid: String,
    /// The TCP port, or that of librdmacm, of the server.
    pub port: u16,
    /// The host name under which the client reaches the server by TCP.
    pub host: String,
    /// The server's address on the RDMA link, for librdmacm.
    pub address: String,
    /// The address of this end on the RDMA link.
    pub own: String,
    /// The MAC address of this end of the RDMA link, and that of the other end.
    pub macs: [String; 2],
    /// Whether both ends of `cmtime` name a controller, here the server: that of rdma-core 65, which has no `-s`.
    pub has_controller: bool,
}

impl Row {
    /// The name in the table.
    pub fn name(&self) -> String {
        format!("{} {}", self.program, self.args).trim_end().to_owned()
    }

    /// Whether it is one process.
    pub fn is_single(&self) -> bool {
        matches!(self.family, Single | Plain)
    }

    /// Whether the server listens at a TCP port.
    pub fn has_port(&self) -> bool {
        match self.family {
            Pingpong | Uct | Ucp | Fabric | EfaFabric | Rma | Qperf | Wheel => true,
            Perftest => !self.uses_cm(),
            _ => false,
        }
    }

    /// Whether its server runs until it is killed.
    pub fn is_endless(&self) -> bool {
        matches!(self.family, Endless | Connect | Qperf)
    }

    /// Whether its program is of a package that the guest's image does not have.
    pub fn is_of_peers(&self) -> bool {
        matches!(self.family, Uct | Ucp | Fabric | Rma | Qperf)
    }

    /// Whether its program is fetched from a registry for a run, which leaves the row out if that is not possible.
    pub fn is_fetched(&self) -> bool {
        self.family == Wheel || self.packages().is_some()
    }

    /// The set of Debian's packages that has its program, if a run can do without it.
    pub fn packages(&self) -> Option<&'static str> {
        match self.program {
            "fi_info" => Some(LIBFABRIC),
            _ if self.family == EfaFabric => Some(LIBFABRIC),
            "fio" => Some("fio"),
            "rpma_rw" => Some("rpma"),
            "gloo_ring" => Some("gloo"),
            "mpich_bench" => Some("mpich"),
            "testpmd" => Some("dpdk"),
            "iser" => Some("iser"),
            NIXL => Some(NIXL),
            _ => None,
        }
    }

    /// The time limit of a server and its client.
    pub fn limit(&self) -> Duration {
        match self.program {
            // On emulated CPUs its libraries alone take seconds of processor time, and the interpreter compiles its modules at first.
            NIXL => NIXL_LIMIT,
            _ => LIMIT,
        }
    }

    /// What its client prints if it has done its work: the exit status of fio is 0 also if it was not connected.
    pub fn proof(&self) -> Option<&'static str> {
        (self.family == Fio).then_some("io=2048KiB")
    }

    /// Whether it runs only in two guests.
    pub fn is_mpi(&self) -> bool {
        self.family == Mpi
    }

    /// Whether it runs with the server in one guest and the client in the other.
    pub fn is_for_pair(&self) -> bool {
        // The processes of gloo_ring have a folder in common.
        !matches!(self.family, Single | Plain | Harness | Watch | Mpich) && self.program != "gloo_ring"
    }

    /// Whether perftest or qperf connects by librdmacm.
    fn uses_cm(&self) -> bool {
        self.args.split(' ').any(|arg| arg == "-R" || arg == "-cm")
    }

    /// Variables of both ends.
    pub fn variables(&self) -> &'static [(&'static str, &'static str)] {
        match self.family {
            // libfabric starts each of its providers otherwise, which takes several seconds on an emulated CPU.
            Fabric => &[("FI_PROVIDER", "verbs")],
            EfaFabric => &[("FI_PROVIDER", "efa")],
            Rma if self.args.contains("msg") => &[("FI_PROVIDER", "verbs")],
            _ => &[],
        }
    }

    /// All arguments of the server (or of the only process), or of the client.
    pub fn words(&self, is_client: bool, names: &Names) -> Vec<String> {
        let Names { device, gid, port, host, address, own, macs: [mac, peer], has_controller } = names;
        let mut args = self.args.to_owned();
        let (client, address_of_family) = match self.family {
            Single | Watch => ("", format!("-d {device}")),
            Plain | Harness => ("", String::new()),
            Rma => (address.as_str(), format!("-b {own} -p {port}")),
            // The words of `mpirun` are made elsewhere.
            Mpi | Mpich => ("", String::new()),
            Wheel => (host.as_str(), format!("--device {device} --gid {gid} --port {port}")),
            Rpma if is_client => ("", format!("-c -p {port} {address}")),
            Rpma => ("", format!("-p {port} {address}")),
            Fio if is_client => {
                ("", format!("--name=client --ioengine=rdma --hostname={address} --port={port} --rw=write"))
            }
            Fio => {
                // The client tells the server which operation it uses.
                args = args.split(' ').filter(|arg| !arg.starts_with("--verb")).collect::<Vec<_>>().join(" ");
                ("", format!("--name=server --ioengine=rdma --port={port} --rw=read"))
            }
            Pingpong => (host.as_str(), format!("-d {device} -g {gid} -p {port}")),
            Perftest if self.uses_cm() => (address.as_str(), format!("-d {device} -p {port} -F")),
            Perftest => (host.as_str(), format!("-d {device} -x {gid} -p {port} -F")),
            Rping if is_client => ("", format!("-c -a {address} -p {port}")),
            Rping => ("", format!("-s -a {address} -p {port}")),
            Udaddy if is_client => ("", format!("-s {address}")),
            Udaddy => ("", String::new()),
            Endless if *has_controller => {
                let listen = if is_client { "" } else { "-L" };
                ("", format!("-C {address} -b {own} {listen} -p {port}"))
            }
            Cm | Connect | Endless if is_client => ("", format!("-s {address} -p {port}")),
            Cm | Connect | Endless => ("", format!("-p {port}")),
            Multicast if is_client => ("", format!("-m 239.1.1.7 -b {own} -s")),
            Multicast => ("", format!("-m 239.1.1.7 -b {own}")),
            Uct => (host.as_str(), format!("-d {device}:1 -p {port}")),
            Ucp => {
                // The variables come first, then the program with its arguments.
                args.push_str(&format!(" -p {port}"));
                (host.as_str(), format!("UCX_NET_DEVICES={device}:1"))
            }
            Fabric => {
                let option = if is_client { "-P" } else { "-B" };
                // The route selects the device of a connected endpoint.
                let domain =
                    if args.contains("dgram") { format!("-d {device}-dgram") } else { String::new() };
                let server = if address.is_empty() { host } else { address };
                (server.as_str(), format!("-p verbs {domain} {option} {port}"))
            }
            EfaFabric => {
                let option = if is_client { "-P" } else { "-B" };
                (host.as_str(), format!("-p efa {option} {port}"))
            }
            Qperf if is_client => {
                let server = if self.uses_cm() { address } else { host };
                ("", format!("{server} -lp {port} -li {device}"))
            }
            Ethernet => {
                let side = if is_client { "--client" } else { "--server" };
                ("", format!("{side} -d {device} -B {mac} -E {peer}"))
            }
            Qperf => {
                args.clear();
                ("", format!("-lp {port}"))
            }
        };
        let client = if is_client { client } else { "" };
        let all = format!("{address_of_family} {args} {client}");
        all.split_whitespace().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows;
    use std::collections::BTreeSet;

    #[test]
    fn rows_differ_and_each_place_has_a_short_selection() {
        let both = || rows::all().chain(rows::crates());
        assert_eq!(both().map(Row::name).collect::<BTreeSet<_>>().len(), both().count());
        for place in EVERYWHERE.list {
            assert!(rows::all().any(|row| row.short && row.places.list.contains(place)));
        }
    }

    #[test]
    fn a_row_that_is_left_out_has_a_reason() {
        for row in rows::all().chain(rows::crates()) {
            assert_eq!(row.places.why.is_empty(), row.places.list.len() == EVERYWHERE.list.len(), "{row:?}");
        }
    }

    #[test]
    fn a_client_names_its_server() {
        let names = Names {
            device: "d".into(),
            gid: "3".into(),
            port: 7,
            host: "h".into(),
            address: "1.2.3.4".into(),
            own: "1.2.3.5".into(),
            macs: ["2:2".into(), "2:3".into()],
            has_controller: false,
        };
        let find = |name: &str| rows::all().chain(rows::crates()).find(|row| row.name() == name).unwrap();
        let words = |name, is_client| find(name).words(is_client, &names).join(" ");
        assert_eq!(words("ibv_rc_pingpong -n 50", false), "-d d -g 3 -p 7 -n 50");
        assert_eq!(words("ib_send_lat -n 20", true), "-d d -x 3 -p 7 -F -n 20 h");
        assert_eq!(words("ib_send_bw -n 50 -R", true), "-d d -p 7 -F -n 50 -R 1.2.3.4");
        assert_eq!(words("rping -C 5 -v", true), "-c -a 1.2.3.4 -p 7 -C 5 -v");
        assert_eq!(
            words("ucx_perftest -x rc_verbs -t am_lat -n 100 -w 10", true),
            "-d d:1 -p 7 -x rc_verbs -t am_lat -n 100 -w 10 h"
        );
        let ucp = "env UCX_TLS=rc_x,self ucx_perftest -t tag_bw -n 100 -s 65536";
        assert_eq!(words(ucp, true), format!("UCX_NET_DEVICES=d:1 {} -p 7 h", &ucp["env ".len()..]));
        assert_eq!(
            words("fi_pingpong -e dgram -I 20 -S 1024", false),
            "-p verbs -d d-dgram -B 7 -e dgram -I 20 -S 1024"
        );
        assert_eq!(
            words("fi_rma -e msg -o read -n 100 -S 65536", true),
            "-b 1.2.3.5 -p 7 -e msg -o read -n 100 -S 65536 1.2.3.4"
        );
        assert_eq!(words("raw_ethernet_bw -n 50 -s 512", false), "--server -d d -B 2:2 -E 2:3 -n 50 -s 512");
        assert_eq!(words("cmtime -c 5", true), "-s 1.2.3.4 -p 7 -c 5");
        let newer = Names { has_controller: true, ..names.clone() };
        assert_eq!(find("cmtime -c 5").words(true, &newer).join(" "), "-C 1.2.3.4 -b 1.2.3.5 -p 7 -c 5");
        assert_eq!(find("sideway-cmtime -c 5").words(true, &newer).join(" "), "-s 1.2.3.4 -p 7 -c 5");
        assert_eq!(words("sideway-rc_pingpong -n 63", true), "-d d -g 3 -p 7 -n 63 h");
        assert_eq!(words("sideway-tests", false), "");
        let fio = "fio --verb=read --bs=64k --size=2m --iodepth=4";
        let both = "--port=7 --rw=read --bs=64k --size=2m --iodepth=4";
        assert_eq!(words(fio, false), format!("--name=server --ioengine=rdma {both}"));
        let client = "--name=client --ioengine=rdma --hostname=1.2.3.4 --port=7 --rw=write";
        assert_eq!(words(fio, true), format!("{client} {}", &fio["fio ".len()..]));
        assert_eq!(words("rpma_rw", true), "-c -p 7 1.2.3.4");
        assert_eq!(words("gloo_ring -n 3", true), "-d d -g 3 -p 7 -n 3 h");
        assert_eq!(words("mooncake", true), "--device d --gid 3 --port 7 h");
        let nixl = "nixl --transports rc_x,self";
        let both = &nixl["nixl ".len()..];
        assert_eq!(words(nixl, true), format!("--device d --gid 3 --port 7 {both} h"));
        assert_eq!(words("fi_pingpong -e rdm -I 20 -S 1024", true), "-p efa -P 7 -e rdm -I 20 -S 1024 h");
        assert_eq!(words("fi_info -p efa", false), "-p efa");
        assert_eq!(words("qperf -t 1 rc_lat", false), "-lp 7");
        assert_eq!(words("qperf -cm 1 -t 1 rc_lat", true), "1.2.3.4 -lp 7 -li d -cm 1 -t 1 rc_lat");
    }
}
