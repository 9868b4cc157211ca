// Files that ddpctl reads and writes: the newest run, logs that have been rotated, the bundle of a
// report, paths that cannot be examined.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "agent/output/run_folder.hpp"
#include "launcher/ctl/bundle.hpp"
#include "launcher/ctl/local_rendezvous.hpp"
#include "launcher/ctl/local_runs.hpp"
#include "launcher/ctl/log_folder.hpp"
#include "launcher/ctl/log_reader.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

namespace {

namespace fs = std::filesystem;
using namespace ddprun::launcher;
using ddprun::test::TempDir;

void write(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
}

std::string read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::string last_lines(const std::string& path, std::size_t count) {
    LogReader reader(path);
    reader.skip_to_last(count);
    std::string text;
    reader.read([&text](std::string_view bytes) { text += bytes; });
    return text;
}

unsigned mode_of(const std::string& path) {
    struct stat status {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    return status.st_mode & 0777U;
}

constexpr uid_t kNobody = 64123;

/// While it lives the process has the rights of an ordinary user: no folder's mode stops root.
class OrdinaryUser {
public:
    OrdinaryUser()
        : was_root_(::geteuid() == 0), is_possible_(!was_root_ || ::seteuid(kNobody) == 0) {}
    ~OrdinaryUser() {
        if (was_root_ && ::seteuid(0) != 0) {
            std::abort();
        }
    }
    OrdinaryUser(const OrdinaryUser&) = delete;
    OrdinaryUser& operator=(const OrdinaryUser&) = delete;

    [[nodiscard]] bool is_possible() const { return is_possible_; }

private:
    bool was_root_;
    bool is_possible_;
};

/// A run whose workers were started last at `restarted`, seconds of Unix time.
void make_run(const std::string& path, std::int64_t started, time_t restarted) {
    const ddprun::agent::RunNote note{.program = "train.py", .job = "job", .hostname = "here"};
    ddprun::agent::RunFolder run(path, note);
    REQUIRE(run.begin(ddprun::Milliseconds(started * 1000)).has_value());
    fs::create_directory(path + "/by-rank");
    const timespec time{.tv_sec = restarted, .tv_nsec = 0};
    const timespec times[] = {time, time};
    REQUIRE(::utimensat(AT_FDCWD, (path + "/by-rank").c_str(), times, 0) == 0);
}

bool is_refused(const std::string& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) != 0 && errno == EACCES;
}

}  // namespace

TEST_CASE("the run that began last is the newest, though an older one restarted after it") {
    const TempDir dir;
    make_run(dir / "job_00000001", 1000, 9000);
    make_run(dir / "job_00000002", 2000, 2000);
    make_run(dir / "other_00000003", 500, 9500);
    REQUIRE(ddprun::agent::runs_in(dir.path()).front().name == "job_00000002");
    CHECK(find_newest_run(dir.path(), "").value() == dir / "job_00000002");
    CHECK(find_newest_run(dir.path(), "other").value() == dir / "other_00000003");
    CHECK_FALSE(find_newest_run(dir.path(), "none").has_value());
}

TEST_CASE("logs are those of the newest run that has some, whosever it is") {
    const TempDir dir;
    make_run(dir / "job_00000001", 1000, 1000);
    fs::create_directory(dir / "job_00000002");
    write(dir / "job_00000002/run.json", R"({"program": "train.py", "started_ms": 2000000})");
    REQUIRE(ddprun::agent::runs_in(dir.path()).front().name == "job_00000002");
    CHECK(find_newest_run(dir.path(), "").value() == dir / "job_00000001");
    if (::geteuid() == 0) {
        REQUIRE(::chown((dir / "job_00000001").c_str(), kNobody, kNobody) == 0);
        CHECK(find_newest_run(dir.path(), "").value() == dir / "job_00000001");
    }
}

TEST_CASE("the last lines of a log are in its full files where the newest has too few") {
    const TempDir dir;
    const std::string log = dir / "stdout.log";
    write(log + ".1", "1\n2\n");
    write(log + ".2", "3\n4\n");
    write(log, "5\n6\n");
    CHECK(last_lines(log, 0).empty());
    CHECK(last_lines(log, 1) == "6\n");
    CHECK(last_lines(log, 2) == "5\n6\n");
    CHECK(last_lines(log, 3) == "4\n5\n6\n");
    CHECK(last_lines(log, 4) == "3\n4\n5\n6\n");
    CHECK(last_lines(log, 5) == "2\n3\n4\n5\n6\n");
    CHECK(last_lines(log, 60) == "1\n2\n3\n4\n5\n6\n");
}

TEST_CASE("a log that has just begun anew, or is about to, has its last lines before") {
    const TempDir dir;
    const std::string log = dir / "stdout.log";
    write(log + ".7", "1\n2\n3\n");
    SECTION("anew") {
        write(log, "");
    }
    SECTION("about to") {}
    CHECK(last_lines(log, 0).empty());
    CHECK(last_lines(log, 1) == "3\n");
    CHECK(last_lines(log, 2) == "2\n3\n");
}

TEST_CASE("a last line without an end is one, and so is one that was cut by a rotation") {
    const TempDir dir;
    const std::string log = dir / "stdout.log";
    write(log + ".1", "1\n2 and");
    write(log, " on\n3");
    CHECK(last_lines(log, 1) == "3");
    CHECK(last_lines(log, 2) == "2 and on\n3");
    CHECK(last_lines(log, 3) == "1\n2 and on\n3");
}

TEST_CASE("a bundle is for its user's eyes only, whatever had its name") {
    const TempDir dir;
    const std::string path = dir / "bundle.json";
    write(path, "old and longer");
    fs::permissions(path, fs::perms(0644));
    std::ifstream opened_before(path);
    REQUIRE(write_bundle(path, "new").has_value());
    CHECK(mode_of(path) == 0600);
    CHECK(read(path) == "new");
    // A reader that had it open reads the old content.
    CHECK(std::string(std::istreambuf_iterator<char>(opened_before), {}) == "old and longer");
    REQUIRE(write_bundle(dir / "other.json", "x").has_value());
    CHECK(mode_of(dir / "other.json") == 0600);
    CHECK(write_bundle("/dev/null", "x").has_value());
    CHECK(fs::is_character_file("/dev/null"));
    fs::create_symlink(path, dir / "link");
    CHECK_FALSE(write_bundle(dir / "link", "x").has_value());
    CHECK_FALSE(write_bundle(dir.path(), "x").has_value());
    CHECK_FALSE(write_bundle(dir / "nowhere/bundle.json", "x").has_value());
    CHECK(read(path) == "new");
    CHECK(std::distance(fs::directory_iterator(dir.path()), {}) == 3);
}

TEST_CASE("a bundle goes into a file that is there where its folder may not be written to") {
    const TempDir dir;
    const std::string path = dir / "bundle.json";
    write(path, "old and longer");
    fs::permissions(path, fs::perms(0644));
    fs::permissions(dir.path(), fs::perms(0555));
    REQUIRE((::geteuid() != 0 || ::chown(path.c_str(), kNobody, kNobody) == 0));
    {
        const OrdinaryUser user;
        REQUIRE(user.is_possible());
        CHECK(write_bundle(path, "new").has_value());
        CHECK(mode_of(path) == 0600);
        CHECK_FALSE(write_bundle(dir / "other.json", "x").has_value());
        fs::permissions(path, fs::perms(0400));
        CHECK_FALSE(write_bundle(path, "newer").has_value());
    }
    CHECK(read(path) == "new");
    fs::permissions(dir.path(), fs::perms(0700));
}

namespace {

/// Other tests' jobs are at work on this machine, too.
const std::string kOwnJob = "job" + std::to_string(::getpid());

/// A node of a job that is at work for as long as it lives.
ddprun::agent::RunFolder begin_node(const TempDir& dir, const std::string& name,
                                    const std::string& node, const std::string& rendezvous,
                                    std::int64_t started = 1000) {
    ddprun::agent::RunFolder run(
        dir / name,
        {.program = "train.py", .job = kOwnJob, .hostname = node, .rendezvous = rendezvous});
    REQUIRE(run.begin(ddprun::Milliseconds(started)).has_value());
    return run;
}

}  // namespace

TEST_CASE("the nodes of a job on one machine are one job, and --node chooses one of them") {
    const TempDir dir;
    const auto first = begin_node(dir, kOwnJob + "_00000001", "gpu", "127.0.0.1:4711");
    const auto second = begin_node(dir, kOwnJob + "_00000002", "gpu#2", "localhost:4711");
    RunWanted wanted{.log_dir = dir.path(), .name = kOwnJob};
    const auto job = choose_job(wanted);
    REQUIRE(job.has_value());
    CHECK(job->is_at_work);
    CHECK(job->folders ==
          std::vector<std::string>{dir / kOwnJob + "_00000001", dir / kOwnJob + "_00000002"});
    const auto several = choose_run(wanted);
    REQUIRE_FALSE(several.has_value());
    CHECK(several.error().what == "job " + kOwnJob +
                                      " has several nodes on this machine: gpu, gpu#2; choose one "
                                      "with --node");
    wanted.node = "gpu#2";
    CHECK(choose_run(wanted).value() == dir / kOwnJob + "_00000002");
    wanted.node = "cpu";
    CHECK(choose_run(wanted).error().what ==
          "job " + kOwnJob + " has no node cpu on this machine; it has gpu, gpu#2");

    CHECK(rendezvous_here(dir.path(), kOwnJob).places ==
          std::vector<std::string>{"127.0.0.1:4711"});
}

TEST_CASE("jobs of one name at two rendezvous, or at none, are two") {
    const TempDir dir;
    const auto first = begin_node(dir, kOwnJob + "_00000001", "gpu", "127.0.0.1:4711");
    const std::string other = GENERATE("127.0.0.1:4712", "127.0.0.9:4711", "");
    const auto second = begin_node(dir, kOwnJob + "_00000002", "gpu", other);
    const auto job = choose_job({.log_dir = dir.path(), .name = kOwnJob});
    REQUIRE_FALSE(job.has_value());
    CHECK(job.error().what == "several runs are meant: " + kOwnJob + "_00000001, " + kOwnJob +
                                  "_00000002; name one of them");
    CHECK(choose_job({.log_dir = dir.path(), .name = kOwnJob + "_00000002"}).has_value());
}

TEST_CASE(
    "of a job that is over those nodes are meant that were at work together, the newest first") {
    const TempDir dir;
    const auto begin_and_end = [&dir](const std::string& name, std::int64_t started) {
        auto run = begin_node(dir, kOwnJob + name, "gpu" + name, "127.0.0.1:4711", started);
        REQUIRE(run.end(ddprun::Milliseconds(started + 500), 1, "over").has_value());
    };
    begin_and_end("_00000001", 1000);
    begin_and_end("_00000002", 5000);
    begin_and_end("_00000003", 5200);
    RunWanted wanted{.log_dir = dir.path(), .name = kOwnJob};
    CHECK_FALSE(choose_job(wanted).has_value());
    wanted.takes_ended = true;
    const auto job = choose_job(wanted);
    REQUIRE(job.has_value());
    CHECK_FALSE(job->is_at_work);
    CHECK(job->folders ==
          std::vector<std::string>{dir / kOwnJob + "_00000003", dir / kOwnJob + "_00000002"});
    CHECK(choose_run(wanted).value() == dir / kOwnJob + "_00000003");
}

TEST_CASE("two names of one rendezvous are one, two ports are two") {
    CHECK(is_same_rendezvous("127.0.0.1:1,127.0.0.1:2", "localhost:2"));
    CHECK_FALSE(is_same_rendezvous("127.0.0.1:1", "localhost:2"));
    CHECK_FALSE(is_same_rendezvous("127.0.0.1:1", ""));
}

TEST_CASE("a path that cannot be looked at is no run, and nothing ends over it") {
    const TempDir dir;
    fs::create_symlink("circle", dir / "circle");
    for (const std::string& path : {dir / "circle", std::string(300, 'x')}) {
        const auto chosen = choose_run({.log_dir = dir.path(), .name = path, .takes_ended = true});
        REQUIRE_FALSE(chosen.has_value());
        CHECK(chosen.error().code == ddprun::ErrorCode::NotFound);
    }
}

TEST_CASE("what this user may not look at is no run, and nothing ends over it") {
    const TempDir dir;
    const std::string locked = dir / "locked";
    const std::string run = locked + "/job_00000001";
    fs::create_directories(run);
    fs::permissions(dir.path(), fs::perms(0755));
    fs::permissions(locked, fs::perms(0));
    {
        const OrdinaryUser user;
        if (!user.is_possible() || !is_refused(run)) {
            WARN("LEFT OUT: no user whom a folder's mode stops can be had");
            return;
        }
        // The descriptors of others' processes, which are looked through as well, are refused, too.
        for (const std::string& log_dir : {dir.path(), locked, run}) {
            const auto chosen = choose_run({.log_dir = log_dir, .name = run, .takes_ended = true});
            REQUIRE_FALSE(chosen.has_value());
            CHECK(chosen.error().what.starts_with("no run here is " + run + ";"));
        }
    }
    fs::permissions(locked, fs::perms(0700));
}
