#!/bin/sh
# lab-efa-up: loads the driver of the two EFA devices, and waits for the devices. At boot, and again after the driver or devices were
# removed.
ib=/sys/class/infiniband

fail() {
    echo "lab-efa-up: $*" >&2
    dmesg | tail -n 25 >&2
    exit 1
}
# The driver probes devices while insmod runs, or soon after. The limit is long, because each step may take many seconds on a busy host.
wait_for() {
    what=$1
    shift
    read -r now rest < /proc/uptime
    end=$((${now%%.*} + 100))
    until "$@" 2>/dev/null; do
        read -r now rest < /proc/uptime
        [ ${now%%.*} -gt $end ] && fail "no $what"
        usleep 10000
    done
}

/sbin/modprobe ib_uverbs || fail "modprobe ib_uverbs"
/sbin/modprobe -q crc16
[ -e /sys/module/efa ] || /sbin/insmod /lab/efa.ko || fail "insmod efa.ko"
for dev in $LAB_DEV_A $LAB_DEV_B; do wait_for "device $dev" test -e $ib/$dev; done
for dev in $LAB_DEV_A $LAB_DEV_B; do wait_for "active port of $dev" grep -q ACTIVE $ib/$dev/ports/1/state; done
exit 0
