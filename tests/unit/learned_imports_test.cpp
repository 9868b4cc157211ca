// An earlier run has found the modules that a program imports, here in folders for the test.

#include "launcher/run/learned_imports.hpp"

#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun;
using namespace ddprun::launcher;
using ddprun::test::TempDir;
using ddprun::test::write_file;

namespace {

namespace fs = std::filesystem;

/// A program, and the caches of its user.
struct Place {
    Place() { write_file(dir / "train.py", "print(1)\n"); }

    [[nodiscard]] LearnedImportsPlaces places() const {
        return {.program = dir / "train.py",
                .python = "/usr/bin/python3",
                .cache = dir / "cache",
                .home = dir / "home"};
    }
    [[nodiscard]] LearnedImports read() const { return read_learned_imports(places(), {}); }
    /// As a rehearsal does.
    [[nodiscard]] std::string keep(const std::string& text) const {
        const std::string file = read().file;
        fs::create_directories(fs::path(file).parent_path());
        write_file(file, text);
        REQUIRE(chmod(file.c_str(), 0600) == 0);
        return file;
    }

    TempDir dir;
};

}  // namespace

TEST_CASE("what was learned is found by the program's content and interpreter") {
    const Place place;
    CHECK(place.read().modules.empty());
    CHECK(place.read().problem.empty());
    const std::string file = place.keep("ddprun imports 3\ntorch\ntorch._dynamo\n");
    CHECK(file.starts_with(place.dir / "cache/ddprun/imports/"));
    const std::vector<std::string> two{"torch", "torch._dynamo"};
    CHECK(place.read().modules == two);

    LearnedImportsPlaces other = place.places();
    other.python = "/opt/python3";
    CHECK(read_learned_imports(other, {}).modules.empty());
    other = place.places();
    other.cache.clear();
    CHECK(read_learned_imports(other, {}).file.starts_with(place.dir / "home/.cache/ddprun/"));
    write_file(place.dir / "train.py", "print(2)\n");
    CHECK(place.read().modules.empty());
}

TEST_CASE("nothing is kept of a program that nobody can tell, or without a folder for caches") {
    const Place place;
    LearnedImportsPlaces places = place.places();
    places.program.clear();
    CHECK(read_learned_imports(places, {}).file.empty());
    places = place.places();
    places.cache = "relative";
    places.home.clear();
    CHECK(read_learned_imports(places, {}).file.empty());
}

TEST_CASE("a file that is not fit is named and not used") {
    const Place place;
    for (const std::string text :
         {"", "torch\n", "ddprun imports 1\ntorch\n", "ddprun imports 3\ntorch",
          "ddprun imports 3\ntorch\nimport os; os.system('ls')\n", "ddprun imports 2\n\n"}) {
        const std::string file = place.keep(text);
        CAPTURE(text);
        CHECK(place.read().modules.empty());
        CHECK(place.read().problem.empty() == text.empty());
    }
    const std::string file = place.keep(
        "ddprun imports 3\n" + std::string(Limits{}.standby_imports_bytes_max, 'x') + "\n");
    CHECK(place.read().problem.find("bytes, at most") != std::string::npos);
    CHECK(place.keep("ddprun imports 3\ntorch\n") == file);
    REQUIRE(chmod(file.c_str(), 0620) == 0);
    CHECK(place.read().problem ==
          "--warm: " + file +
              " is not used: it is another user's, or others may write to it; remove it");
    REQUIRE(chmod(file.c_str(), 0600) == 0);
    CHECK(place.read().modules == std::vector<std::string>{"torch"});
    fs::rename(file, file + ".moved");
    fs::create_symlink(file + ".moved", file);
    CHECK(place.read().modules.empty());
    fs::remove(file);
    fs::create_directory(file);
    CHECK(place.read().problem.find("it is no regular file") != std::string::npos);
}
