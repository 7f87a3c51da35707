// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs-efa`: software EFAs as PCI devices, for VMs.

use clap::Parser;
use std::process::ExitCode;
use uverbs_efa_device::Generation;
use uverbs_efa_pci::PciFunction;
use uverbs_vfio::Options;

/// Software EFAs as PCI devices of VMs (vfio-user)
///
/// Provides one device for each --socket. All devices are on one fabric, so two devices in one VM, or in two VMs, can
/// communicate. QEMU (10.1 or newer) uses a device with the option `-device
/// '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"PATH"}}'` and needs its memory as a shared file: `-object
/// memory-backend-memfd,id=m,size=1G,share=on -machine memory-backend=m`. The driver is Linux' efa; kernel 6.1 knows the first three
/// generations.
///
/// Devices of several processes are on one fabric if one process has --fabric PATH and the others have --join PATH.
///
/// Standard input and the control socket accept commands, one per line. The answer is a line that begins with `ok` or `error`. The
/// commands are `link N up|down` (the Nth device, from 0), `netem off | loss 1% delay 2ms ...`, `repairs`, `packets N`, `stat N`,
/// `violations` (their number), `forgive [KIND...]` (prints and clears them, or those of these kinds), `stop N` (the device takes no
/// admin commands and gives no signs of life), `go N`, `fatal N` (the device fails, with an event), `quit`, `help`. At the end the
/// program prints the violations of drivers, in lines that begin with `violation:`.
#[derive(Debug, Parser)]
#[command(name = "uverbs-efa", version)]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// The generation of all devices, 1 to 5: their PCI device (efa0 to efa4) and what they can do
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=5))]
    generation: u8,
    /// Limits the send entries that may be written before a doorbell, in units of 64 bytes; 0 is no limit
    #[arg(long, default_value_t = 0, value_name = "UNITS")]
    max_tx_batch: u16,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // The option's range is that of the numbers.
    let generation = Generation::of_number(cli.generation.into()).unwrap_or_default();
    uverbs_vfio::main::<PciFunction>("uverbs-efa", "efa", &cli.options, |fabric, name| {
        let device = fabric.device(name).generation(generation).max_tx_batch(cli.max_tx_batch);
        Ok(PciFunction::new(device)?)
    })
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::Parser;

    #[test]
    fn commands_of_the_documentation_are_valid() {
        for command in uverbs_book::commands(&["uverbs-efa"]) {
            if let Err(error) = Cli::try_parse_from(&command.words) {
                panic!("{}: {error}", command.at);
            }
        }
    }
}
