"""Build of the C core.  Everything else about the package is in pyproject.toml.

Each ``strata/_core/<name>.pyx`` becomes the extension ``strata._core.<name>``.
Two variables change the build, and a change of either rebuilds everything:

STRATA_SANITIZE=thread|address   adds the sanitizer (run with its library preloaded)
STRATA_DEBUG=1                   assertions, bounds checks, no optimisation

STRATA_CHECKED_CORE=0 leaves out the second, checked build of the modules (strata/_core/checked), which
fault injection and weak order need.
"""

import os
import shutil
import sys
from pathlib import Path

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
CORE = Path("strata/_core")
CHECKED = CORE / "checked"
# Modules that no other die sees at work, and so need no second build.
UNCHECKED = {
    "array", "fakepages", "inspector", "kernels", "lowering", "marks", "quantise", "routing", "scheduling",
    "simulator", "spans", "tracemode", "tracing", "translation",
}  # fmt: skip

if int(setuptools.__version__.split(".")[0]) < 77:
    sys.exit(
        f"strata needs setuptools 77 or later to build, and this is {setuptools.__version__}: "
        "pip install -U 'setuptools>=77'"
    )

# One language for the whole core.  boundscheck and wraparound are off because
# what comes from shared memory is checked explicitly, once, before it is used.
DIRECTIVES = {
    "language_level": "3",
    "binding": True,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "legacy_implicit_noexcept": False,
}

# No -march: one wheel serves every machine, and hot kernels dispatch at run
# time.  No contraction: a*b+c must round alike on every die and machine.
CFLAGS = [
    "-std=gnu11",
    "-O3",
    "-g1",
    "-pthread",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    # What Cython generates and nobody here can change.
    "-Wno-unused-parameter",
    "-Wno-unused-function",
    "-Wno-missing-field-initializers",
    "-Wno-sign-compare",
    "-Wno-cast-function-type",
]
LDFLAGS = ["-pthread"]
SANITIZERS = {
    "thread": ["-fsanitize=thread"],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
}


def flags():
    """Compiler flags, linker flags and Cython directives of this build."""
    cflags, ldflags, directives = list(CFLAGS), list(LDFLAGS), dict(DIRECTIVES)
    debug = os.environ.get("STRATA_DEBUG", "0")
    if debug not in ("", "0", "1"):
        sys.exit(f"STRATA_DEBUG={debug!r}: allowed are 0 and 1")
    if debug == "1":
        cflags += ["-O0", "-g3", "-UNDEBUG", "-DST_DEBUG=1"]
        directives |= {"boundscheck": True, "wraparound": False, "initializedcheck": True}
    sanitize = os.environ.get("STRATA_SANITIZE", "")
    if sanitize:
        if sanitize not in SANITIZERS:
            sys.exit(f"STRATA_SANITIZE={sanitize!r}: allowed are {', '.join(SANITIZERS)}")
        cflags += SANITIZERS[sanitize] + ["-g", "-fno-omit-frame-pointer"]
        ldflags += SANITIZERS[sanitize]
    return cflags, ldflags, directives


def stamp(text):
    """A file whose time changes only when the flags do; True when it did."""
    path = ROOT / "build" / "flags.txt"
    if path.exists() and path.read_text() == text:
        return path, False
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path, True


def checked_wanted():
    """Whether the checked modules are built, too."""
    wanted = os.environ.get("STRATA_CHECKED_CORE", "1")
    if wanted not in ("", "0", "1"):
        sys.exit(f"STRATA_CHECKED_CORE={wanted!r}: allowed are 0 and 1")
    return wanted != "0"


def extensions():
    """One extension for each .pyx of the core; Build turns them into C."""
    headers = sorted(map(str, [*CORE.glob("include/*.h"), *CORE.glob("*.pxd"), *CHECKED.glob("*.h")]))

    def extension(name, source, *defines):
        return Extension(
            f"strata._core.{name}",
            [str(source)],
            include_dirs=[str(CORE / "include")],
            depends=headers,
            define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"), ("_GNU_SOURCE", "1"), *defines],
        )

    plain = sorted(CORE.glob("*.pyx"))
    made = [extension(source.stem, source) for source in plain]
    if checked_wanted():
        hooks = extension("checked.hooks", CHECKED / "hooks.pyx", ("ST_CHECKED", "1"))
        hooks.include_dirs.append(str(CHECKED))
        made += [hooks, *(extension(f"checked.{source.stem}", source, ("ST_CHECKED", "1"))
                          for source in plain if source.stem not in UNCHECKED)]  # fmt: skip
    return made


def copied(module):
    """Whether a module is compiled from a copy of the C of another, with the hooks in it."""
    return module.name.startswith("strata._core.checked.") and not module.name.endswith(".hooks")


class Build(build_ext):
    """Translates the core, then compiles its modules side by side."""

    def finalize_options(self):
        super().finalize_options()
        if self.parallel is None:
            self.parallel = min(4, len(os.sched_getaffinity(0)))

    def run(self):
        if self.extensions:
            self.translate()
        super().run()

    def translate(self):
        """Cython to C, and the flags that only a real build needs to know."""
        import numpy
        from Cython.Build import cythonize
        from Cython.Compiler.Version import version as cython_version

        cflags, ldflags, directives = flags()
        path, changed = stamp(
            f"{cflags}\n{ldflags}\n{sorted(directives.items())}\n"
            f"cython {cython_version} numpy {numpy.__version__} python {sys.version}\n"
        )
        for module in self.extensions:
            module.include_dirs.append(numpy.get_include())
            module.depends.append(str(path.relative_to(ROOT)))
            module.extra_compile_args = cflags
            module.extra_link_args = ldflags
        modules = [module for module in self.extensions if not copied(module)]
        translated = cythonize(modules, compiler_directives=directives, force=changed or self.force)
        for module, new in zip(modules, translated, strict=True):
            module.sources = new.sources
        for module in filter(copied, self.extensions):
            source = CORE / f"{module.name.rpartition('.')[2]}.c"
            target = Path("build/checked", source.name)  # objects are named after their sources
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists() or target.read_bytes() != source.read_bytes():
                shutil.copyfile(source, target)
            module.sources = [str(target)]
            module.extra_compile_args = [*cflags, "-O1"]


os.chdir(ROOT)
setup(ext_modules=extensions(), cmdclass={"build_ext": Build})
