"""What the C compiler says of structs that numpy has twins of."""

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

import strata

INCLUDE = Path(strata.__file__).parent / "_core" / "include"


def compiler() -> list[str]:
    """The C compiler that built this Python, or whatever `cc` is; the build needs one anyway."""
    for command in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        if command and shutil.which(shlex.split(command)[0]):
            return shlex.split(command)
    pytest.skip("no C compiler on this host")


def assert_twins(tmp_path, header, records):
    """Asserts that structs of a header and numpy dtypes (name -> dtype) have the same sizes, and fields at the same
    offsets; and that no field but the named ones is there."""
    lines = []
    for struct, dtype in records.items():
        lines.append(f'printf("{struct} - 0 %zu\\n", sizeof(struct {struct}));')
        for name in dtype.names:
            lines.append(
                f'printf("{struct} {name} %zu %zu\\n", offsetof(struct {struct}, {name}),'
                f" sizeof(((struct {struct} *)0)->{name}));"
            )
    source = tmp_path / "layout.c"
    source.write_text(
        f'#include <stdio.h>\n#include "{header}"\nint main(void) {{\n' + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    program = tmp_path / "layout"
    subprocess.run(
        [*compiler(), "-std=c11", "-Wall", "-Werror", f"-I{INCLUDE}", str(source), "-o", str(program)],
        check=True,
    )
    said = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    expected = []
    for struct, dtype in records.items():
        expected.append(f"{struct} - 0 {dtype.itemsize}")
        end = 0
        for name in dtype.names:
            field, offset = dtype.fields[name][:2]
            expected.append(f"{struct} {name} {offset} {field.itemsize}")
            assert offset == end, f"{struct}: hole before {name}"
            end = offset + field.itemsize
        assert end == dtype.itemsize
    assert said.split("\n")[:-1] == expected
