"""The default isolation: user, mount, pid, ipc, uts, network and cgroup namespaces around forks of a zygote."""
