#!/bin/sh
# lab-link up|down A|B: sets one end of the link up or down.
case "$1 $2" in
"up A" | "down A") n=0 dev=$LAB_DEV_A ns=$LAB_NS_A netdev=$LAB_NETDEV_A ;;
"up B" | "down B") n=1 dev=$LAB_DEV_B ns=$LAB_NS_B netdev=$LAB_NETDEV_B ;;
*)
    echo "usage: lab-link up|down A|B" >&2
    exit 2
    ;;
esac
[ "$LAB_DEVICE" = mlx5 ] || exec $ns /usr/bin/ip link set "$netdev" "$1"
# As if the cable was taken out.
exec lab-hca link $n "$1"
