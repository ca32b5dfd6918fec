"""What `import titans` offers, and how fast the command line answers."""

import subprocess
import sys
import time

import titans


def test_every_public_name_loads() -> None:
    for name in titans.__all__:
        assert getattr(titans, name) is not None
    assert sorted(titans.__all__) == dir(titans)


def test_unknown_names_are_attribute_errors() -> None:
    assert not hasattr(titans, "Nothing")


def test_import_and_help_load_no_torch() -> None:
    code = (
        "import sys, titans\n"
        "from titans.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules\n"
    )
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "titans COMMAND --help" in done.stdout
    assert time.perf_counter() - begin < 30


def test_the_layer_loads_no_compiler() -> None:
    """`torch._dynamo` would be half of the time until a memory can be made."""
    code = (
        "import sys, torch\n"
        "from titans import NeuralMemory\n"
        "y, _ = NeuralMemory(8, num_heads=1, chunk_size=4)(torch.randn(1, 9, 8))\n"
        "y.sum().backward()\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
