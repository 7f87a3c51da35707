#!/bin/sh
# lab-link up|down A|B: sets one end of the link up or down.
case "$1 $2" in
"up A" | "down A") exec $LAB_NS_A /usr/bin/ip link set "$LAB_NETDEV_A" "$1" ;;
"up B" | "down B") exec $LAB_NS_B /usr/bin/ip link set "$LAB_NETDEV_B" "$1" ;;
esac
echo "usage: lab-link up|down A|B" >&2
exit 2
