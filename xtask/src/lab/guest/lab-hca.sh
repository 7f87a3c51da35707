#!/bin/sh
# lab-hca WORDS...: tells the fabric of the software NICs something, and prints its answer. `lab-hca help` lists what
# it can be told. One at a time: the port can be open only once.
[ -e /dev/lab/hca ] || { echo "lab-hca: the devices are not mlx5" >&2; exit 2; }
exec 9<>/lab/hca.lock
flock 9
exec 8<>/dev/lab/hca
echo "$*" >&8
IFS= read -r answer <&8
echo "$answer"
case "$answer" in
ok*) exit 0 ;;
esac
exit 1
