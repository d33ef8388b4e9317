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

TOGETHER = "dialects/together/"
OPENSANDBOX = "dialects/opensandbox/"

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


def _http(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/security/test_h_http.py::{name}" for name in names)


def _dialects(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/security/test_h_dialects.py::{name}" for name in names)


def _streams(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/security/test_h_streams.py::{name}" for name in names)


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
        (BLIND, ("guest/init.py", "    linux.close_from(CONNECTION_FD + len(kept))\n", "")),
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
    # ---------------------------------------------------------------------------------------- server: who may call
    Mutation(
        "server: keys are compared",
        (("server/keys.py", "            if hmac.compare_digest(known, digest):\n", "            if known or digest:\n"),),
        _http("test_h10_every_route_asks_for_a_key"),
    ),
    Mutation(
        "server: Together's routes ask for a key",
        ((TOGETHER + "management.py", "            if tenant is None:\n                raise Refused(401,", "            tenant = tenant or ''\n            if tenant is None:\n                raise Refused(401,"),),
        _dialects("test_h10_every_route_of_every_dialect"),
    ),
    Mutation(
        "server: OpenSandbox's routes ask for a key",
        ((OPENSANDBOX + "lifecycle.py", "            if tenant is None:\n                code,", "            tenant = tenant or ''\n            if tenant is None:\n                code,"),),
        _dialects("test_h10_every_route_of_every_dialect"),
    ),
    Mutation(
        "server: a sandbox is its tenant's (E2B)",
        (("dialects/e2b/calls.py", "notes_of(sandbox) if sandbox.spec.tenant == self.tenant else None", "notes_of(sandbox)"),),
        _dialects("test_f07_a_key_of_somebody_else"),
    ),
    Mutation(
        "server: a sandbox is its tenant's (Together)",
        ((TOGETHER + "registry.py", "if sandbox is not None and sandbox.spec.tenant == tenant:", "if sandbox is not None:"),),
        _dialects("test_f07_a_key_of_somebody_else"),
    ),
    Mutation(
        "server: a sandbox is its tenant's (OpenSandbox)",
        ((OPENSANDBOX + "registry.py", "if notes is None or (tenant is not None and sandbox.spec.tenant != tenant):", "if notes is None:"),),
        _dialects("test_f07_a_key_of_somebody_else"),
    ),
    Mutation(
        "server: a sandbox is of the dialect that made it",
        (("dialects/e2b/dialect.py", "        notes = notes_of(sandbox)\n        if notes is None:  # another dialect made it\n",
          "        notes = notes_of(sandbox) or Notes('')\n        if notes is None:  # another dialect made it\n"),),
        _dialects("test_f07_dialects_do_not_find_each_others_sandboxes"),
    ),
    Mutation(
        "server: the token of a sandbox's planes",
        (("dialects/e2b/notes.py", "        return self.envd_token is None or is_token(self.envd_token, presented)\n", "        return True\n"),),
        _http("test_h10_planes_of_a_sandbox_ask_for_its_token"),
    ),
    Mutation(
        "server: the token of a private sandbox's ports",
        (("dialects/e2b/notes.py", "        return self.traffic_token is None or is_token(self.traffic_token, presented)\n", "        return True\n"),),
        _dialects("test_f07_tokens_are_not_mixed_up"),
    ),
    Mutation(
        "server: the token of execd",
        ((OPENSANDBOX + "access.py", "    if token is None or is_token(token, presented):\n", "    if token is None or not is_token(token, None):\n"),),
        _dialects("test_h10_every_route_into_a_sandbox"),
    ),
    Mutation(
        "server: the token of the network policy",
        ((OPENSANDBOX + "gateway.py", "        if place.port == EGRESS_PORT and not is_token(\n", "        if place.port == -EGRESS_PORT and not is_token(\n"),),
        _dialects("test_h10_every_route_into_a_sandbox"),
    ),
    Mutation(
        "server: a token that may only read",
        ((TOGETHER + "agent.py", '            if needed == "admin" and scope != "admin":\n', '            if needed == "admin" and not scope:\n'),),
        _dialects("test_h10_every_route_into_a_sandbox"),
    ),
    # ---------------------------------------------------------------------------------------- server: what is sent to it
    Mutation(
        "server: the names that it answers to",
        (("server/hosts.py", "        if not self._allows(host_name(found[0])):\n", "        if not found[0]:\n"),),
        _http("test_h12_foreign_names"),
    ),
    Mutation(
        "server: bodies have a bound",
        (("server/exchange.py", "        if limit is not None and told is not None and told.isdecimal() and int(told[:20]) > limit:\n", "        if limit is None and limit is not None:\n"),
         ("server/exchange.py", "        if limit is not None and self._received > limit:\n", "        if limit is None and limit is not None:\n"),
         ("dialects/asgi.py", "    if told is not None and told.isdecimal() and int(told[:20]) > limit:\n", "    if told is None and told is not None:\n"),
         ("dialects/asgi.py", "        if len(whole) > limit:\n", "        if not whole and limit < 0:\n")),
        _http("test_h02_bodies_over_the_limit"),
    ),
    Mutation(
        "server: what is no JSON by its type is not read",
        (("dialects/asgi.py", '    return kind == "application/json" or kind.endswith("+json")\n', '    return kind != "application/none"\n'),),
        (*_dialects("test_h13_no_dialect_takes_forms"), *_http("test_h13_forms_create_nothing")),
    ),
    Mutation(
        "server: what nobody reads of a WebSocket is not piled up",
        (("server/protocol.py", "ws=bounded_websocket(settings.write_timeout) if websockets", 'ws="websockets-sansio" if websockets'),),
        _streams("test_h07_a_flood_of_pings"),
    ),
    Mutation(
        "server: WebSockets count among the connections",
        (("server/protocol.py", "        if most is not None and len(self.connections) > most:\n", "        if most is not None and most < 0:\n"),),
        _streams("test_a22_websockets_have_no_bound_of_their_own"),
    ),
    # ---------------------------------------------------------------------------------------- server: what comes out of a sandbox
    Mutation(
        "server: pages of a sandbox are confined",
        ((OPENSANDBOX + "confinement.py", '"headers": [*message["headers"], CONFINED]}', '"headers": [*message["headers"]]}'),),
        _streams("test_g11_pages_of_a_sandbox_are_confined"),
    ),
    Mutation(
        "server: programs inside are not told tokens",
        ((OPENSANDBOX + "gateway.py", "Target(sandbox, port, None, HIDDEN)", "Target(sandbox, port, None)"),),
        _streams("test_f12_programs_are_not_shown_tokens"),
    ),
    Mutation(
        "server: files of a sandbox are no pages of the server",
        (("dialects/e2b/envd/downloads.py", "    confined = [] if kind == PDF else [CONFINED]\n", "    confined = [CONFINED] if kind == PDF else []\n"),),
        _streams("test_g11_pages_of_a_sandbox_are_confined"),
    ),
    Mutation(
        "server: a volume is its tenant's",
        ((OPENSANDBOX + "volumes.py", '("_default" if not tenant else name)', '("_default" if not tenant else "_default")'),),
        _dialects("test_f07_volumes_belong_to_tenants"),
    ),
    Mutation(
        "server: directories of the host that are allowed",
        ((OPENSANDBOX + "volumes.py", 'path.startswith(allowed.rstrip("/") + "/")', 'path.startswith(allowed.rstrip("/"))'),),
        _dialects("test_f07_volumes_belong_to_tenants"),
    ),
    Mutation(
        "sockets that a guest hands over are what was asked for",
        (("runtimes/sockets.py", "        right = opened is not None and check(opened)\n", "        right = opened is not None\n"),),
        ("tests/runtimes/test_sockets.py",),
    ),
    Mutation(
        "names in an archive are no paths",
        (("guest/archives.py", '        if name in {".", ".."} or "/" in name or "\\0" in name or not name:\n', "        if not name:\n"),),
        ("tests/guest/test_archives.py::test_a_malformed_archive_is_refused",),
    ),
    Mutation(
        "records in an archive have bounds",
        (("guest/archives.py", "                if size > MAX_DESCRIPTION or more > MAX_CONTENT:\n", "                if size < 0:\n"),),
        ("tests/security/test_i_events.py::test_a20_records_are_bounded_before_they_come",),
    ),
    # ---------------------------------------------------------------------------------------- server: after a restart
    Mutation(
        "who listens at a door is the sandbox that was recorded",
        (("runtimes/namespaces/survivors.py", "    if peer.pid != pid:\n", "    if not peer.pid:\n"),),
        ("tests/security/test_i_events.py::test_i02_doors_that_were_exchanged",),
    ),
    Mutation(
        "the host looks again when it adopts",
        (("runtimes/namespaces/survivors.py", '    if found != record["fingerprint"]:\n', "    if not found:\n"),),
        ("tests/lifecycle/test_adoption.py::test_a_posture_that_changed",),
    ),
    Mutation(
        "a recorded number alone is nobody",
        (("runtimes/namespaces/survivors.py", '        if pid != record["pid"] or start_time(pid) != record["start"]:\n', "        if not pid:\n"),),
        ("tests/lifecycle/test_adoption.py::test_a_record_that_names_another_process",),
    ),
    Mutation(
        "the state directory is its user's alone",
        (("runtimes/state.py", "    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:\n", "    if status.st_uid != os.geteuid():\n"),),
        ("tests/runtimes/test_state.py::test_that_others_can_enter",),
    ),
)  # fmt: skip
