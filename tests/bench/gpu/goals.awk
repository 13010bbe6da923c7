# goals.awk: compares lines of `trainer bench step` with their goals: the useful MFU of the projection with each of
# -v goals=20.7,35,45, and the spread of the steps of every depth with 3 %. A goal within the error of the projection is undecided.
/^steps: standard deviation / {
    spread = $4 + 0; slow = $0; sub(/.*mean; /, "", slow); slow += 0
    printf "goal: standard deviation under 3 %%: %.2f %%, %s\n", spread, (spread < 3) ? "reached" : "not reached"
    printf "goal: no step under 90 %% of the median's rate: %.1f %% are, %s\n", slow, (slow == 0) ? "reached" : "not reached"
}
/^projected: / { # the last one is from all depths
    mfu = error = $0
    sub(/.*mfu: /, "", mfu); sub(/.*mfu: [0-9.]+% \+- /, "", error)
    mfu += 0; error = (error ~ /^[0-9]/) ? error + 0 : "unknown"
}
function verdict(goal) {
    if (error == "unknown")
        return "undecided"
    return (mfu - error > goal) ? "reached" : (mfu + error <= goal) ? "not reached" : "undecided"
}
END {
    if (mfu == "") { print "no projection was printed"; exit 1 }
    n = split(goals, goal, ",")
    for (i = 1; i <= n; i++)
        printf "goal: useful MFU above %s %%: projected %.2f +- %s %%, %s\n", goal[i], mfu, error, verdict(goal[i] + 0)
}
