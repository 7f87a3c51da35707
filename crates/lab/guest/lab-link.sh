#!/bin/sh
# lab-link up|down A|B: sets one end of the link up or down; the other end gets an event. With mlx5 and EFA, it disconnects or
# connects the cable.
case "$1 $2" in
"up A" | "down A") ns=$LAB_NS_A netdev=$LAB_NETDEV_A ;;
"up B" | "down B") ns=$LAB_NS_B netdev=$LAB_NETDEV_B ;;
*)
    echo "usage: lab-link up|down A|B" >&2
    exit 2
    ;;
esac
[ -e /dev/lab/hca ] || exec $ns /usr/bin/ip link set "$netdev" "$1"
lab-hca link 0 "$1" && lab-hca link 1 "$1"
