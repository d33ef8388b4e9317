"""A small interpreter of classic BPF, to ask a compiled filter what it decides on a call."""

import struct

from cellfork.runtimes.namespaces import seccomp

PRECEDENCE = (seccomp.KILL, seccomp.ERRNO, seccomp.ALLOW)
"""Of several filters the strictest wins."""


def run(program: bytes, number: int, *arguments: int, arch: int) -> int:
    """Return the action that ``program`` decides on for one system call."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    unsigned = (argument & 0xFFFFFFFFFFFFFFFF for argument in padded)
    data = struct.pack("=IIQ6Q", number & 0xFFFFFFFF, arch, 0, *unsigned)
    code = [struct.unpack_from("=HBBI", program, position) for position in range(0, len(program), 8)]
    accumulator, position = 0, 0
    while True:
        operation, when_true, when_false, operand = code[position]
        position += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif operation == 0x54:
            accumulator &= operand
        elif operation == 0x05:
            position += operand
        elif operation == 0x06:
            return operand
        else:
            taken = {
                0x15: accumulator == operand,
                0x35: accumulator >= operand,
                0x45: bool(accumulator & operand),
            }[operation]
            position += when_true if taken else when_false


def decide(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """Return what a locked sandbox's two filters decide together."""
    actions = [
        run(program, number, *arguments, arch=arch or seccomp.AUDIT_ARCH[machine])
        for program in (seccomp.base_filter(machine), seccomp.delta_filter(machine))
    ]
    return min(
        actions, key=lambda action: PRECEDENCE.index(action & 0xFFFF0000 if action < seccomp.KILL else action)
    )
