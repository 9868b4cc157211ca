// The fingerprint describes a program and its Python, here in folders made for the test.

#include "launcher/machine/fingerprint.hpp"

#include <filesystem>
#include <string>

#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun;
using namespace ddprun::launcher;
using ddprun::test::TempDir;
using ddprun::test::write_file;

namespace {

namespace fs = std::filesystem;

constexpr char kTorch[] =
    "__all__ = ['__version__', 'debug']\n__version__ = '2.13.0+cu130'\ndebug = False\n";
constexpr char kNccl[] =
    "/* a licence */\n#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n"
    "#define NCCL_SUFFIX \"\"\n";

void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(path).parent_path());
    write_file(path, text);
}

rdzv::Fingerprint of_program(const std::string& path, Limits limits = {}) {
    return read_fingerprint(
        {.program = path, .python = {}, .python_path = {}, .home = {}, .driver = "/none"}, limits);
}

rdzv::Fingerprint of_python(const std::string& python, const std::string& python_path = "",
                            const std::string& home = "/none") {
    return read_fingerprint({.program = {},
                             .python = python,
                             .python_path = python_path,
                             .home = home,
                             .driver = "/none"},
                            {});
}

}  // namespace

TEST_CASE("programs of the same content have the same hash, whatever they are called") {
    const TempDir dir;
    write_file(dir / "one", "print(1)\n");
    write_file(dir / "copy", "print(1)\n");
    write_file(dir / "other", "print(2)\n");
    write_file(dir / "empty", "");
    const std::string hash = of_program(dir / "one").program;
    CHECK(hash.size() == 16);
    CHECK(of_program(dir / "copy").program == hash);
    CHECK(of_program(dir / "other").program != hash);
    CHECK(of_program(dir / "empty").program.size() == 16);
    CHECK(of_program(dir / "none").program.empty());
    CHECK(of_program(std::string(dir / ".")).program.empty());
}

TEST_CASE("of a large program size, beginning and end count") {
    const TempDir dir;
    Limits limits;
    limits.program_hash_bytes_max = 10;
    const auto hash = [&](const std::string& text) {
        write_file(dir / "large", text);
        return of_program(dir / "large", limits).program;
    };
    const std::string text(100, 'a');
    const std::string first = hash(text);
    CHECK(hash(text) == first);
    CHECK(hash("b" + text.substr(1)) != first);
    CHECK(hash(text.substr(1) + "b") != first);
    CHECK(hash(text + "a") != first);
    CHECK(hash(std::string(15, 'a')) != hash(std::string(14, 'a') + "b"));
}

TEST_CASE("a Python's version is in its name, torch's and NCCL's beside it") {
    const TempDir dir;
    write(dir / "base/bin/python3.11", "");
    fs::create_symlink("python3.11", std::string(dir / "base/bin/python3"));
    CHECK(of_python(dir / "base/bin/python3") ==
          rdzv::Fingerprint{
              .program = {}, .python = "CPython 3.11", .torch = {}, .nccl = {}, .driver = {}});
    write(dir / "base/lib/python3.11/site-packages/torch/version.py", kTorch);
    write(dir / "base/lib/python3.11/site-packages/nvidia/nccl/include/nccl.h", kNccl);
    const rdzv::Fingerprint found = of_python(dir / "base/bin/python3");
    CHECK(found.python == "CPython 3.11");
    CHECK(found.torch == "2.13.0+cu130");
    CHECK(found.nccl == "2.28.9");

    // Those of the user come first.
    write(dir / "home/.local/lib/python3.11/site-packages/torch/version.py",
          "__version__ = '2.12.1'\n");
    CHECK(of_python(dir / "base/bin/python3", "", dir / "home").torch == "2.12.1");
    write(dir / "mine/torch/version.py", "__version__ = \"2.11\"\n");
    const std::string path = "/none:" + std::string(dir / "mine");
    CHECK(of_python(dir / "base/bin/python3", path, dir / "home").torch == "2.11");
}

TEST_CASE("a virtual environment has its own packages, and its base's only if it says so") {
    const TempDir dir;
    write(dir / "base/bin/python3.12", "");
    write(dir / "base/lib/python3.12/site-packages/torch/version.py", kTorch);
    fs::create_directories(std::string(dir / "env/bin"));
    fs::create_symlink(std::string(dir / "base/bin/python3.12"),
                       std::string(dir / "env/bin/python3"));
    write(dir / "env/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n");
    CHECK(of_python(dir / "env/bin/python3").python == "CPython 3.12");
    CHECK(of_python(dir / "env/bin/python3").torch.empty());
    write(dir / "env/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = true\n");
    CHECK(of_python(dir / "env/bin/python3").torch == "2.13.0+cu130");
    write(dir / "env/lib/python3.12/site-packages/torch/version.py", "__version__ = '2.9.0'\n");
    CHECK(of_python(dir / "env/bin/python3").torch == "2.9.0");
}

TEST_CASE("a Python whose name does not tell is known by its one folder of libraries") {
    const TempDir dir;
    write(dir / "bin/python", "");
    CHECK(of_python(dir / "bin/python").python.empty());
    fs::create_directories(std::string(dir / "lib/pypy3.10"));
    CHECK(of_python(dir / "bin/python").python == "PyPy 3.10");
    fs::create_directories(std::string(dir / "lib/python3.11"));
    CHECK(of_python(dir / "bin/python").python.empty());
    CHECK(of_python(dir / "bin/none").python.empty());
}

TEST_CASE("the driver's version is the kernel's word, and what is no word is nothing") {
    const TempDir dir;
    write_file(dir / "version", "580.95.05\n");
    FingerprintPlaces places;
    places.driver = dir / "version";
    CHECK(read_fingerprint(places, {}).driver == "580.95.05");
    write_file(dir / "version", std::string("5\x1b[2J\n"));
    CHECK(read_fingerprint(places, {}).driver.empty());
    write_file(dir / "version", std::string(1000, '5'));
    CHECK(read_fingerprint(places, {}).driver.empty());
}
