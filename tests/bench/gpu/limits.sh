# limits.sh: runs commands within a time limit, one or several at a time, and goes on if one of them cannot be ended.
# tests/gpu and its stages source it.
#
# A command gets a process session of its own, which is how its descendants are found. The sessions are listed in the file
# $TESSERA_GPU_SESSIONS, so that whoever ends a stage also ends what the stage has started.

limit_exit=124 # of a command that was ended at its limit
stuck_exit=88  # of one that lives on after SIGKILL, since the driver holds it
linger_s=${TESSERA_GPU_LINGER_S:-10}
signal=${TESSERA_GPU_KILL:-kill} # a rehearsal has one that nothing hears
# Waiting without a process of its own, where a pipe can be opened from both sides (not every sandbox lets it).
if (exec {nap_fd}<> <(:)) 2>/dev/null; then
    exec {nap_fd}<> <(:)
    nap() { read -rt "$1" -u "$nap_fd" || true; }
else
    nap() { sleep "$1"; }
fi

# Prints the living processes of these sessions. It reads /proc/PID/stat only: to read the command line or the environment of
# a process that hangs in the driver may hang too.
living() { # SESSION..
    local file text fields wanted=" $* "
    for file in /proc/[0-9]*/stat; do
        { text=$(<"$file"); } 2>/dev/null || continue
        read -ra fields <<<"${text##*) }" # state, parent, group, session
        [ "${fields[0]}" != Z ] && [[ $wanted == *" ${fields[3]} "* ]] && { file=${file%/stat}; echo "${file#/proc/}"; }
    done
    return 0
}

# Ends these sessions: SIGTERM, after two seconds SIGKILL. Fails, and says so, if a process is left.
end_sessions() { # SESSION..
    local left waited=0 sent
    left=$(living "$@")
    [ -z "$left" ] || $signal -TERM $left 2>/dev/null
    while [ -n "$left" ] && [ $waited -lt 20 ]; do
        nap 0.1
        waited=$((waited + 1))
        left=$(living "$@")
    done
    [ -n "$left" ] || return 0
    sent=$EPOCHSECONDS
    while $signal -KILL $left 2>/dev/null; nap 0.2; left=$(living "$@"); [ -n "$left" ]; do
        [ $((EPOCHSECONDS - sent)) -lt "$linger_s" ] ||
            { echo "process" $left "lives $linger_s s after SIGKILL: the driver holds it"; return 1; }
    done
}

# Starts a command in a session of its own; $! is its process and its session.
begin_session() { # COMMAND..
    setsid "$@" &
    [ -z "${TESSERA_GPU_SESSIONS-}" ] || echo $! >>"$TESSERA_GPU_SESSIONS"
}

# Returns whether a process has ended. Its exit code is then fetched with wait.
ended() { # PID
    local text
    { text=$(<"/proc/$1/stat"); } 2>/dev/null || return 0
    text=${text##*) }
    [ "${text%% *}" = Z ]
}

# Runs a command for at most this many seconds, and returns its exit code, limit_exit or stuck_exit.
limited() { # SECONDS COMMAND..
    local seconds=$1 pid began=$EPOCHREALTIME
    shift
    begin_session "$@"
    pid=$!
    while ! ended $pid; do
        passed "$began" "$seconds" || { nap 0.05; continue; }
        echo "ended: it took longer than $seconds s"
        end_sessions $pid || return $stuck_exit
        return $limit_exit
    done
    wait $pid
}

# Returns whether `seconds` (which may have a fraction) have passed since `began`, an EPOCHREALTIME.
passed() { # BEGAN SECONDS
    local whole=${2%.*} part=0 now=${EPOCHREALTIME/./}
    [[ $2 != *.* ]] || part=$(printf '%-6.6s' "${2#*.}" | tr ' ' 0)
    [ $((now - ${1/./})) -ge $((${whole:-0} * 1000000 + 10#$part)) ]
}

# Runs a command once for each item, up to `count` of them at a time, each within `seconds`, and writes what item I says to
# FOLDER/I.log and its exit code to FOLDER/I.code. Returns stuck_exit if one could not be ended; then no more are started.
side_by_side() { # COUNT SECONDS FOLDER ITEMS COMMAND..
    local count=$1 seconds=$2 folder=$3 item code
    local -A running=() since=()
    local -a waiting
    mapfile -t waiting <<<"$4"
    shift 4
    mkdir -p "$folder"
    rm -f "$folder"/*.log "$folder"/*.code
    while [ ${#waiting[@]} -gt 0 ] || [ ${#running[@]} -gt 0 ]; do
        while [ ${#waiting[@]} -gt 0 ] && [ ${#running[@]} -lt "$count" ]; do
            item=${waiting[0]} waiting=("${waiting[@]:1}")
            begin_session "$@" $item >"$folder/${item// /}.log" 2>&1 </dev/null
            running[$item]=$! since[$item]=$EPOCHREALTIME
        done
        for item in "${!running[@]}"; do
            if ended "${running[$item]}"; then
                wait "${running[$item]}"
                code=$?
            elif passed "${since[$item]}" "$seconds"; then
                echo "ended: it took longer than $seconds s" >>"$folder/${item// /}.log"
                code=$limit_exit
                end_sessions "${running[$item]}" >>"$folder/${item// /}.log" || code=$stuck_exit
            else
                continue
            fi
            echo $code >"$folder/${item// /}.code"
            unset "running[$item]"
            [ $code != $stuck_exit ] || { end_sessions "${running[@]}"; return $stuck_exit; }
        done
        nap 0.1
    done
}
