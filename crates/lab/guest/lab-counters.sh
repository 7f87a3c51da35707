#!/bin/sh
# lab-counters [NAME...]: prints the hardware counters of both devices that are not zero, or those named.
for dev in "$LAB_DEV_A" "$LAB_DEV_B"; do
    for file in /sys/class/infiniband/"$dev"/ports/1/hw_counters/*; do
        name=${file##*/}
        [ "$name" = lifespan ] && continue
        value=$(cat "$file")
        if [ $# -eq 0 ]; then
            [ "$value" != 0 ] && echo "$dev $name $value"
        else
            for wanted; do [ "$wanted" = "$name" ] && echo "$dev $name $value"; done
        fi
    done
done
exit 0
