# card.sh: what the GPU and its driver are, and how they fare while a stage runs. tests/gpu and its stages source it.

command -v nvidia-smi >/dev/null || PATH=$PATH:/usr/local/nvidia/bin # where containers mount it
least_driver=580 # the first of CUDA 13
ask_card() { timeout 20 nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>&1; } # FIELDS

# Prints "GPU_DRIVER"; fails, and prints the reason, if there is no GPU.
gpu_name() {
    local answer
    command -v nvidia-smi >/dev/null || { echo "there is no nvidia-smi here, so there is no driver"; return 1; }
    answer=$(ask_card name,driver_version) || { printf '%s\n' "$answer" | head -1; return 1; }
    printf '%s\n' "$answer" | head -1 | sed 's/, /_/; s/[ /]/-/g'
}

# What to do if the driver is older than the toolkit: the first line of every report. CUDA's compatibility library is put in place
# if it is here.
remedy=
check_driver() {
    local version folder
    version=$(ask_card driver_version) || return 0
    version=${version%%$'\n'*}
    [[ $version =~ ^[0-9]+ ]] && [ "${version%%.*}" -lt $least_driver ] || return 0
    remedy="driver $version is older than CUDA 13's $least_driver: install NVIDIA's package cuda-compat-13-0 and put its folder"
    remedy+=" /usr/local/cuda-13.0/compat first in LD_LIBRARY_PATH, or update the driver"
    for folder in "${CUDA_HOME:-/usr/local/cuda}"/compat /usr/local/cuda-13*/compat; do
        [ -e "$folder/libcuda.so.1" ] || continue
        export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        remedy="driver $version is older than CUDA 13's $least_driver: cuda-compat of $folder takes its place"
        return
    done
}

# Samples clocks, power, temperature, memory and the reasons why the clock is held down, twice a second.
card_fields=clocks.sm,clocks.mem,power.draw,temperature.gpu,memory.used
card_sample() {
    local reasons=clocks_event_reasons.active # older drivers call it clocks_throttle_reasons
    [[ $(ask_card $reasons) == *0x* ]] || reasons=clocks_throttle_reasons.active
    exec nvidia-smi --query-gpu=$card_fields,$reasons --format=csv,noheader,nounits -lms 500
}

# Prints what the samples from this line on say, in one line.
card_line() { # FROM
    [ -s "${TESSERA_GPU_CARD-}" ] || { echo "card: not sampled"; return; }
    tail -n +"$1" "$TESSERA_GPU_CARD" | awk -F', *' '
        NF == 6 {
            n++; sm += $1
            if (n == 1 || $1 < low) low = $1
            if ($1 > high) high = $1
            if ($2 > mem) mem = $2
            if ($3 > watt) watt = $3
            if ($4 > hot) hot = $4
            if ($5 > used) used = $5
            if ($6 !~ /^0x0*[01]?$/) why[$6]++ # 0x1 is an idle GPU
        }
        END {
            if (!n) { print "card: not sampled"; exit }
            printf "card: SM clock %.0f MHz (%d to %d), memory %d MHz, at most %.0f W, %d C, %d MiB used; held down: ", sm / n, low, high, mem, watt, hot, used
            for (r in why) { printf "%s%s in %d of %d samples", sep, r, why[r], n; sep = ", " }
            print sep ? " (NVML clocksEventReasons)" : "never"
        }'
}
card_now() { [ -f "${TESSERA_GPU_CARD-}" ] && wc -l <"$TESSERA_GPU_CARD" || echo 0; } # the line at which the next sample stands
