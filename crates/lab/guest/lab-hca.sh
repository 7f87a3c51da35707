#!/bin/sh
# lab-hca WORDS...: sends a command to the fabric of the software NICs, and prints its answer. `lab-hca help` lists the
# commands. The port can be open only once. The directory is its lock.
[ -e /dev/lab/hca ] || { echo "lab-hca: no process implements the devices" >&2; exit 2; }
read -r now rest < /proc/uptime
end=$((${now%%.*} + 60))
until mkdir /lab/hca.busy 2>/dev/null; do
    read -r now rest < /proc/uptime
    [ ${now%%.*} -gt $end ] && { echo "lab-hca: the port is busy" >&2; exit 2; }
    usleep 10000
done
trap 'rmdir /lab/hca.busy' EXIT
exec 8<>/dev/lab/hca
echo "$*" >&8
IFS= read -r answer <&8
echo "$answer"
case "$answer" in
ok*) exit 0 ;;
esac
exit 1
