"""Boots a host's own kernel and initramfs in a virtual machine, in software, and asks its shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

PROGRAM = "qemu-system-x86_64"
PROMPT = b"(initramfs)"
SECONDS = 300


def missing():
    """Why no virtual machine can be started here; None when one can."""
    return None if shutil.which(PROGRAM) else f"{PROGRAM} is not installed (qemu-system-x86)"


def ask(kernel, image, question):
    """What the initramfs's shell, entered after the image's modules are loaded, answers."""
    command = [
        PROGRAM,
        *("-accel", "tcg", "-m", "1024", "-nographic", "-nic", "none", "-no-reboot"),
        *("-kernel", str(kernel), "-initrd", str(image)),
        *("-append", "console=ttyS0 quiet break=premount"),
    ]
    console, asked, end = b"", False, time.monotonic() + SECONDS
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as machine:
        os.set_blocking(machine.stdout.fileno(), False)
        while machine.poll() is None and time.monotonic() < end:
            console += machine.stdout.read() or b""
            if PROMPT in console and not asked:
                asked = True
                machine.stdin.write(f"{question}; poweroff -f\n".encode())
                machine.stdin.flush()
            time.sleep(0.2)
        console += machine.stdout.read() or b""
        machine.kill()
    text = console.decode(errors="replace").replace("\r", "")
    if not asked:
        raise RuntimeError(f"the machine did not come to its shell:\n{text[-3000:]}")
    return text.rpartition("poweroff -f\n")[2]
