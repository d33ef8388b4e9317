"""The controls that ``mutations.py`` removes, one at a time, and the tests that must notice.

Nearly every one is removed together with the host's look at the posture, and limits together with the self-test,
which would otherwise refuse the sandbox before the test of the control itself could run.  These two are
mutations of their own.
"""

from scripts.mutations import Mutation

Edit = tuple[str, str, str]

LOCKS = "guest/locks.py"
SECCOMP = "runtimes/namespaces/seccomp.py"
LAYOUT = "runtimes/namespaces/layout.py"
CGROUPS = "runtimes/namespaces/cgroups.py"
RUNTIME = "runtimes/namespaces/runtime.py"
SANDBOX = "guest/sandbox.py"
RULES = "runtimes/egress/rules.py"
PROXY = "runtimes/egress/proxy.py"

BLIND: Edit = (
    "runtimes/namespaces/inspection.py",
    "wrong = [] if found == expectation.posture else differences(expectation.posture, found)",
    "wrong = []",
)
"""The host looks at the posture, and whatever it sees is right."""
UNTESTED: Edit = (
    "runtimes/namespaces/selftest.py",
    "    missing = missing_of(test, limits)\n    if missing:\n",
    "    missing = missing_of(test, limits)\n    if missing and not limits:\n",
)
"""The limits are hit at the start, and whatever answers is right."""


def _unlocked(name: str, take: str, holds: str) -> Edit:
    return (LOCKS, f'    Lock("{name}", {take}, {holds}),\n', "")


def _isolation(name: str) -> str:
    return f"tests/security/test_isolation.py::{name}"


def _kernel(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/security/test_d_kernel.py::{name}" for name in names)


def _files(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/security/test_c_filesystem.py::{name}" for name in names)


def _network(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/security/test_e_network.py::{name}" for name in names)


def _resources(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/security/test_a_resources.py::{name}" for name in names)


MUTATIONS = (
    Mutation("the host's look at the posture", (BLIND,), ("tests/security/test_posture.py",)),
    Mutation("the self-test of the limits", (UNTESTED,), ("tests/runtimes/namespaces/test_selftest.py",)),
    # ---------------------------------------------------------------------------------------------- locks
    Mutation(
        "resource limits of a process",
        (BLIND, UNTESTED, _unlocked("resource limits", "_take_limits", "_limits_hold")),
        _resources("test_a12_no_descriptors_left", "test_a25_core_dump"),
    ),
    Mutation(
        "a user namespace of its own",
        (BLIND, _unlocked("user namespace", "_enter_user_namespace", "_no_user_namespace_below")),
        (_isolation("test_every_namespace_is_its_own"),),
        vital=True,
    ),
    Mutation(
        "securebits",
        (BLIND, _unlocked("securebits", "_lock_securebits", "_securebits_hold")),
        ("tests/security/test_fail_closed.py::test_d01_system_calls_that_fail", "tests/guest/test_locks.py"),
    ),
    Mutation(
        "unprivileged ids",
        (BLIND, _unlocked("ids", "_take_ids", "_ids_hold")),
        (_isolation("test_no_process_has_any_right"),),
        vital=True,
    ),
    Mutation(
        "empty capability sets",
        (BLIND, _unlocked("capabilities", "_drop_capabilities", "_capabilities_are_gone")),
        ("tests/security/test_posture.py::test_d21_no_capabilities",),
    ),
    Mutation(
        "init that cannot be looked into",
        (BLIND, _unlocked("no dumps", "_refuse_dumps", "_dumps_are_refused")),
        (*_files("test_c04_processes_of_others"), "tests/guest/test_locks.py"),
    ),
    Mutation(
        "Landlock",
        (BLIND, _unlocked("landlock", "_restrict_files", "_files_are_restricted")),
        (*_kernel("test_d20_no_device_but_the_declared"), "tests/security/test_fail_closed.py::test_d01_system_calls_that_fail"),
    ),
    Mutation(
        "the filter that ends the set-up",
        (BLIND, _unlocked("seccomp", "_filter_calls", "_calls_are_filtered")),
        _kernel("test_d01_no_namespace_is_made", "test_d02_nothing_is_mounted", "test_d03_no_namespace_is_entered"),
    ),
    # ---------------------------------------------------------------------------------- system call filter
    Mutation(
        "the allow-list of system calls",
        (BLIND, (RUNTIME, '"seccomp_base": seccomp.base_filter().hex(),', '"seccomp_base": "",'),
         (LOCKS, 'and linux.answer("io_uring_setup", 1, 0) == errno.ENOSYS', ""),
         (LOCKS, 'and linux.answer("process_madvise", -1, 0, 0, 0, 0) == errno.EPERM', "")),
        _kernel("test_d05_no_program_and_no_counter_in_the_kernel", "test_d06_no_asynchronous_rings"),
    ),
    Mutation(
        "ENOSYS for unknown calls",
        (BLIND, (SECCOMP, "*_search(_ranges(actions, [_refuse(errno.ENOSYS)])),", "*_search(_ranges(actions, [_ALLOWED])),")),
        _kernel("test_d14_every_number_gets_the_answer_of_the_table"),
    ),
    Mutation(
        "other system call tables",
        (BLIND, (SECCOMP, "        (_RETURN, 0, 0, KILL),\n", "        (_RETURN, 0, 0, ALLOW),\n")),
        _kernel("test_d13_the_other_system_call_tables"),
    ),
    Mutation(
        "socket families",
        (BLIND, (SECCOMP, "no_unix = _one_of((AF_NETLINK,), netlink, [_refuse(errno.EAFNOSUPPORT)])", "no_unix = [_ALLOWED]")),
        _kernel("test_d10_d11_d12_socket_families"),
    ),
    Mutation(
        "clone without namespaces",
        (BLIND, (SECCOMP, "NAMESPACE_FLAGS = 0x7E020000", "NAMESPACE_FLAGS = 0")),
        _kernel("test_d01_no_namespace_is_made"),
    ),
    Mutation(
        "typing into terminals",
        (BLIND, (SECCOMP, "TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD = 0x5412, 0x541C, 0x541D, 0x5423",
                 "TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD = 0xFF12, 0xFF1C, 0xFF1D, 0xFF23")),
        _kernel("test_d17_nothing_is_typed_into_a_terminal"),
    ),
    Mutation(
        "leases on shared files",
        (BLIND, (SECCOMP, "F_SETLEASE, F_NOTIFY = 1024, 1026", "F_SETLEASE, F_NOTIFY = 4024, 4026")),
        _files("test_c22_leases_are_refused"),
    ),
    Mutation(
        "room for no namespace below",
        (BLIND, ("guest/maker.py", "        _forbid_namespaces()\n", ""),
         (LOCKS, 'return _read("/proc/sys/user/max_user_namespaces") == b"0\\n"', "return True")),
        _kernel("test_d01_the_kernel_has_no_room_for_namespaces"),
    ),
    # ---------------------------------------------------------------------------------------- files
    Mutation(
        "hidden files of /proc",
        (BLIND, (SANDBOX, 'for path in plan["proc_hidden_files"]:', "for path in ():")),
        _files("test_c05_kernel_files_are_masked"),
    ),
    Mutation(
        "read-only settings of the kernel",
        (BLIND, (SANDBOX, 'for path in plan["proc_read_only"]:', "for path in ():")),
        (*_kernel("test_d23_no_setting_of_the_kernel_is_written"), *_files("test_c02_every_mount_is_restricted", "test_c05_kernel_files_are_masked")),
    ),
    Mutation(
        "a read-only root",
        (BLIND, ("guest/boot.py", "linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV\n",
                 "linux.MS_BIND | linux.MS_REMOUNT | linux.MS_NOSUID | linux.MS_NODEV\n")),
        _files("test_c01_the_system_is_read_only", "test_c02_every_mount_is_restricted"),
    ),
    Mutation(
        "read-only parts of the host",
        (BLIND, (LAYOUT, "READ_ONLY = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV", "READ_ONLY = linux.MS_NOSUID | linux.MS_NODEV")),
        _files("test_c01_the_system_is_read_only", "test_c02_every_mount_is_restricted"),
        vital=True,
    ),
    Mutation(
        "no devices and no set-user-id programs on its own places",
        (BLIND, (SANDBOX, 'linux.mount("disk", disk, "tmpfs", _NO_DEVICES, ', 'linux.mount("disk", disk, "tmpfs", 0, ')),
        (*_files("test_c02_every_mount_is_restricted"), *_kernel("test_d20_no_mount_lets_a_device_through")),
    ),
    Mutation(
        "only what the list names of /etc",
        (BLIND, (LAYOUT, '    "alternatives",\n', '    "alternatives",\n    "shadow",\n')),
        (*_files("test_c03_secrets_are_absent"), _isolation("test_secrets_and_homes_of_the_host_are_absent")),
    ),
    Mutation(
        "special files are not opened by the file operations",
        (("guest/files.py", "    if not stat.S_ISREG(status.st_mode):\n        raise NotAFile", "    if False:\n        raise NotAFile"),),
        ("tests/security/test_c_file_api.py::test_c13_special_files",),
    ),
    # ---------------------------------------------------------------------------------------- namespaces
    Mutation(
        "an IPC namespace of its own",
        (BLIND, (SANDBOX, "linux.CLONE_NEWNS | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP",
                 "linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP")),
        (_isolation("test_every_namespace_is_its_own"), "tests/security/test_f_secrets.py::test_f05_all_pairs"),
    ),
    Mutation(
        "a network namespace of its own",
        (BLIND, UNTESTED, (SANDBOX, "    linux.setns(net_ns, linux.CLONE_NEWNET)\n", "")),
        (_isolation("test_every_namespace_is_its_own"), "tests/security/test_f_secrets.py::test_f05_all_pairs"),
    ),
    Mutation(
        "a control group namespace of its own",
        (BLIND, (SANDBOX, "linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP", "linux.CLONE_NEWUTS")),
        (_isolation("test_every_namespace_is_its_own"), "tests/security/test_f_secrets.py::test_f04_what_names_the_host"),
    ),
    # ---------------------------------------------------------------------------------------- limits
    Mutation(
        "the limit on memory",
        (BLIND, UNTESTED, (CGROUPS, '_write(path / "memory.limit_in_bytes", size)', '_write(path / "memory.limit_in_bytes", size * 8)'),
         (CGROUPS, '_forbid_swap(path / "memory.memsw.limit_in_bytes", size)', '_forbid_swap(path / "memory.memsw.limit_in_bytes", size * 8)')),
        _resources("test_a03_memory_bomb"),
    ),
    Mutation(
        "the limit on processes",
        (BLIND, UNTESTED, (CGROUPS, '_write(paths["pids"] / "pids.max", limits.pids)', '_write(paths["pids"] / "pids.max", limits.pids * 4)')),
        (_isolation("test_processes_are_limited"),),
    ),
    Mutation(
        "the limit on processor time",
        (BLIND, UNTESTED, (CGROUPS, '_write(path / "cpu.cfs_quota_us", quota)', "pass")),
        (_isolation("test_processor_time_is_limited"),),
    ),
    Mutation(
        "the limit on inodes",
        (BLIND, UNTESTED, (SANDBOX, '''bounds = f"size={plan['disk']},nr_inodes={plan['inodes']}"''', '''bounds = f"size={plan['disk']}"''')),
        _resources("test_a10_no_inodes_left"),
    ),
    Mutation(
        "the limit on the disk",
        (BLIND, UNTESTED, (SANDBOX, '''bounds = f"size={plan['disk']},nr_inodes={plan['inodes']}"''', '''bounds = f"nr_inodes={plan['inodes']}"''')),
        (*_resources("test_a08_full_disk"), _isolation("test_files_count_as_memory_and_the_disk_is_bounded")),
    ),
    Mutation(
        "the size of shared memory",
        (BLIND, UNTESTED, (SANDBOX, '''bounds = f"size={plan['shm']},nr_inodes={plan['shm_inodes']}"''', '''bounds = f"nr_inodes={plan['shm_inodes']}"''')),
        _resources("test_a05_shared_memory_is_capped"),
    ),
    Mutation(
        "sandboxes die first where the machine has no memory",
        (BLIND, UNTESTED, ("guest/boot.py", "    oom.volunteer(oom.ZYGOTE, least=0)\n", ""), ("guest/kernels.py", "        oom.volunteer(oom.KERNEL)\n", "")),
        _resources("test_a03_sandboxes_die_first_when_the_host_has_no_memory"),
    ),
    # ---------------------------------------------------------------------------------------- processes, secrets
    Mutation(
        "descriptors are closed after the fork",
        (BLIND, ("guest/init.py", "    linux.close_from(CONNECTION_FD + 1 if identity is None else USER_NS_FD + 1)\n", "")),
        (_isolation("test_descriptors_are_exactly_the_declared_ones"), "tests/security/test_posture.py", "tests/security/test_j_zygote.py"),
    ),
    Mutation(
        "nothing of the host's environment",
        (BLIND, (RUNTIME, "**plan.environment(layout.search_path(python))", "**__import__('os').environ, **plan.environment(layout.search_path(python))")),
        ("tests/security/test_f_secrets.py::test_f01_environment", _isolation("test_no_environment_variable_of_the_host_gets_in")),
    ),
    Mutation(
        "random numbers are seeded anew",
        (("guest/python/kernel.py", "    entropy.reseed(image.sources)\n", "    del image\n"),),
        ("tests/security/test_j_zygote.py::test_j03_first_draws_differ", _isolation("test_random_numbers_differ_between_siblings")),
    ),
    Mutation(
        "one zygote for each tenant",
        (("runtimes/zygotes.py", "        domain = Domain(tenant, template)\n", '        domain = Domain("", template)\n'),),
        ("tests/security/test_j_zygote.py::test_j01_j02_tenants_share_no_layout",),
    ),
    # ---------------------------------------------------------------------------------------- network
    Mutation(
        "addresses that are out of reach",
        ((RULES, "        if reason is not None:\n            where", "        if reason is None and reason:\n            where"),),
        _network("test_e11_rebinding", "test_e04_private_ranges"),
    ),
    Mutation(
        "the allow-list of hosts",
        ((RULES, "        if not matching:\n            raise self._not_allowed(target)\n", ""),),
        _network("test_e13_names", "test_e09_data_in_names"),
    ),
    Mutation(
        "no addresses where names are allowed",
        ((RULES, "        if target.address is not None:\n            raise Denied(", "        if target.address is None and target.address is not None:\n            raise Denied("),
         (RULES, "        if not matching:\n            raise self._not_allowed(target)\n", "        if not matching and target.address is None:\n            raise self._not_allowed(target)\n")),
        _network("test_e07_addresses_in_allow_list_mode"),
    ),
    Mutation(
        "the name in TLS is the name of the tunnel",
        ((PROXY, "        if not same:\n", "        if not same and same:\n"),),
        _network("test_e12_names_that_disagree"),
    ),
    Mutation(
        "the password of the proxy",
        (("runtimes/egress/account.py", "        if len(authorization) != 1:\n            return False\n", "        return True\n"),),
        _network("test_each_sandbox_has_its_own_password"),
    ),
    Mutation(
        "the byte budget",
        (("runtimes/egress/account.py", "        if self._sent > self.policy.upload_bytes:\n", "        if self._sent < 0:\n"),),
        _network("test_e23_upload_over_an_allowed_host"),
    ),
    # ---------------------------------------------------------------------------------------- frames
    Mutation(
        "a frame is of the execution that runs",
        (("engine/contexts.py", 'elif running is None or header["execution"] != running.id:', "elif running is None:"),),
        ("tests/engine", "tests/security/test_g_frames.py::test_g03_forged_for_another_execution"),
    ),
    Mutation(
        "the check of every message from a guest",
        (("runtimes/connection.py", "                check_from_guest(frame)\n", ""),),
        ("tests/runtimes/test_connection.py",),
    ),
    Mutation(
        "escape sequences stay out of the terminal",
        (("cli/output.py", "self._put(self._cleaner.feed(text))", "self._put(text)"),),
        ("tests/cli/test_run.py", "tests/cli/test_real.py"),
    ),
)  # fmt: skip
