// Runs in a log folder: what they say of themselves, and which may be removed.

#include "agent/output/run_folder.hpp"

#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/os/machine_identity.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

namespace {

namespace fs = std::filesystem;
using namespace ddprun::agent;
using ddprun::Milliseconds;
using ddprun::test::TempDir;

RunNote note_of(const std::string& program) {
    return {.program = program,
            .job = "job",
            .hostname = "here",
            .pid = 7,
            .machine = ddprun::read_machine_identity()};
}

/// The note of a run that another machine made: its lock is not seen here, as through NFS.
RunNote note_of_elsewhere() {
    RunNote note = note_of("train.py");
    note.hostname = "gpu-07";
    note.machine = {.name = "gpu-07", .boot_id = "another", .machine_id = "another"};
    return note;
}

/// A run that was not ended; its ddprun holds the lock no more, or the lock cannot be seen.
void make_begun(const std::string& path, std::int64_t started, const RunNote& note) {
    RunFolder run(path, note);
    REQUIRE(run.begin(Milliseconds(started)).has_value());
}

/// A run that began at `started` and exited with 0.
void make_over(const std::string& path, std::int64_t started) {
    RunFolder run(path, note_of("train.py"));
    REQUIRE(run.begin(Milliseconds(started)).has_value());
    REQUIRE(run.end(Milliseconds(started + 1), 0, "every rank exited 0").has_value());
}

std::vector<std::string> names_of(const std::vector<FoundRun>& runs) {
    std::vector<std::string> names;
    for (const FoundRun& run : runs) {
        names.push_back(run.name);
    }
    return names;
}

}  // namespace

TEST_CASE("a run's note comes back as it was, and nothing else is one") {
    RunNote note = note_of("/a \"b\"/train.py");
    note.started = Milliseconds(1795368099950);
    CHECK(parse_run_note(run_note_json(note).dump()) == note);
    note.ended = Milliseconds(1795368100000);
    note.exit_code = 139;
    note.text = "rank 3 on gpu-07 was killed by SIGSEGV";
    note.saving = Milliseconds(41000);
    CHECK(parse_run_note(run_note_json(note).dump()) == note);
    for (const char* text :
         {"", "{", "[]", "{}", R"({"program": 1, "started_ms": 1})", R"({"program": "x"})"}) {
        CHECK_FALSE(parse_run_note(text).has_value());
    }
    CHECK_FALSE(parse_run_note(std::string(60000, '[')).has_value());
}

TEST_CASE("how long saving took is that of the job's newest run that knows it") {
    const TempDir dir;
    const auto make = [&](const std::string& name, int started,
                          std::optional<Milliseconds> saving) {
        RunFolder run(dir / name, note_of("train.py"));
        REQUIRE(run.begin(Milliseconds(started)).has_value());
        REQUIRE(run.end(Milliseconds(started + 1), 75, "", saving).has_value());
    };
    CHECK_FALSE(last_saving(dir.path(), "job").has_value());
    make("job_00000001", 1, Milliseconds(7000));
    make("job_00000002", 2, Milliseconds(9000));
    make("job_00000003", 3, std::nullopt);
    make("other_00000004", 4, Milliseconds(1000));
    CHECK(last_saving(dir.path(), "job") == Milliseconds(9000));
    CHECK_FALSE(last_saving(dir.path(), "none").has_value());
}

TEST_CASE("a run's folder is called after its job") {
    CHECK(is_run_name("job_0123abcd"));
    CHECK(is_run_name("a_b_0123abcd", "a_b"));
    CHECK_FALSE(is_run_name("a_b_0123abcd", "a"));
    CHECK_FALSE(is_run_name("job_0123abc"));
    CHECK_FALSE(is_run_name("job_0123abcX"));
    CHECK_FALSE(is_run_name("job-0123abcd"));
    CHECK_FALSE(is_run_name("_0123abcd"));
    CHECK_FALSE(is_run_name("latest"));
    CHECK_FALSE(is_run_name("job_0123abcd.removed"));
}

TEST_CASE("runs are listed newest first with what became of them, and latest leads to the newest") {
    const TempDir dir;
    make_over(dir / "job_00000001", 1000);
    make_begun(dir / "job_00000002", 2000, note_of("train.py"));
    RunFolder held(dir / "other_00000003", note_of("train.py"));
    REQUIRE(held.begin(Milliseconds(3000)).has_value());
    fs::create_directories(dir / "job_00000004/by-rank");  // its note is not written yet
    fs::create_directories(dir / "data_0000beef");         // the user's own
    fs::create_directory_symlink(dir / "job_00000001", dir / "job_00000005");
    const std::vector<FoundRun> runs = runs_in(dir.path());
    REQUIRE(names_of(runs) == std::vector<std::string>{"job_00000004", "other_00000003",
                                                       "job_00000002", "job_00000001"});
    CHECK(runs[0].state == RunState::Unclear);
    CHECK(runs[1].state == RunState::Held);
    CHECK(runs[2].state == RunState::Dead);
    CHECK(runs[3].state == RunState::Over);
    CHECK(runs[3].note.exit_code == 0);
    CHECK(names_of(runs_in(dir.path(), "other")) == std::vector<std::string>{"other_00000003"});
    CHECK(fs::read_symlink(dir / "latest") == "other_00000003");
    CHECK(runs_in(dir / "nowhere").empty());
}

TEST_CASE("a run without workers has a note if its report made a folder, else nothing") {
    const TempDir dir;
    RunFolder none(dir / "job_00000001", note_of("train.py"));
    CHECK(none.end(Milliseconds(5), 71, "gave up").has_value());
    CHECK_FALSE(fs::exists(dir / "job_00000001"));
    CHECK_FALSE(fs::exists(dir / "latest"));
    fs::create_directory(dir / "job_00000001");
    CHECK(none.end(Milliseconds(5), 71, "gave up").has_value());
    const std::vector<FoundRun> runs = runs_in(dir.path());
    REQUIRE(runs.size() == 1);
    CHECK(runs[0].note.exit_code == 71);
    CHECK(runs[0].note.text == "gave up");
}

TEST_CASE("a run that ends while the log disk is full says how it ended") {
    const TempDir dir;
    if (::mount("full", dir.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
        WARN("SKIPPED: only root may mount a small disk");
        return;
    }
    {
        RunFolder run(dir / "job_00000001", note_of("train.py"));
        REQUIRE(run.begin(Milliseconds(1)).has_value());
        // A log takes all the rest.
        std::ofstream(dir / "log") << std::string(std::size_t{1} << 20, 'h') << std::flush;
        REQUIRE_FALSE(std::ofstream(dir / "more") << "x" << std::flush);
        const std::string why(10000, 'w');
        CHECK(run.end(Milliseconds(2), 17, why).has_value());
        const std::vector<FoundRun> runs = runs_in(dir.path());
        REQUIRE(runs.size() == 1);
        CHECK(runs[0].note.exit_code == 17);
        CHECK(runs[0].note.ended == Milliseconds(2));
        CHECK(runs[0].note.text.size() > 2000);
        CHECK(why.starts_with(runs[0].note.text));
    }
    CHECK(::umount2(dir.path().c_str(), MNT_DETACH) == 0);
}

TEST_CASE("removing runs leaves the newest, the held, and whatever links lead to") {
    const TempDir dir;
    const TempDir elsewhere;
    std::ofstream(elsewhere / "precious") << "x";
    for (int i = 1; i <= 4; ++i) {
        make_over(dir / ("job_0000000" + std::to_string(i)), 1000 * i);
    }
    fs::create_directory_symlink(elsewhere.path(), dir / "job_00000002/attempt_0");
    fs::create_directory_symlink(elsewhere.path(), dir / "job_00000009");
    fs::create_directories(dir / "data_0000beef");
    fs::create_directories(dir / "job_00000007.removed/attempt_0");  // was interrupted
    RunFolder held(dir / "job_00000005", note_of("train.py"));
    REQUIRE(held.begin(Milliseconds(1)).has_value());  // the oldest
    const std::vector<FoundRun> runs = runs_in(dir.path());
    const RunsRemoved said = remove_runs(dir.path(), runs, 2, true);
    CHECK(said.removed == std::vector<std::string>{"job_00000002", "job_00000001"});
    CHECK(runs_in(dir.path()).size() == 5);
    const RunsRemoved done = remove_runs(dir.path(), runs, 2, false);
    CHECK(done.removed == said.removed);
    CHECK(done.left == std::vector<std::string>{"job_00000005: its ddprun runs"});
    CHECK(done.failed.empty());
    CHECK(names_of(runs_in(dir.path())) ==
          std::vector<std::string>{"job_00000004", "job_00000003", "job_00000005"});
    CHECK(fs::exists(elsewhere / "precious"));
    CHECK(fs::is_symlink(dir / "job_00000009"));
    CHECK(fs::exists(dir / "data_0000beef"));
    CHECK_FALSE(fs::exists(dir / "job_00000007.removed"));
    CHECK(fs::is_symlink(dir / "latest"));
}

TEST_CASE("a run that another machine made is left alone unless it says that it is over") {
    const TempDir dir;
    make_begun(dir / "job_00000001", 1000, note_of_elsewhere());
    {
        RunFolder over(dir / "job_00000002", note_of_elsewhere());
        REQUIRE(over.begin(Milliseconds(2000)).has_value());
        REQUIRE(over.end(Milliseconds(2001), 0, "every rank exited 0").has_value());
    }
    make_begun(dir / "job_00000003", 3000, note_of("train.py"));
    const std::vector<FoundRun> runs = runs_in(dir.path());
    REQUIRE(runs.size() == 3);
    CHECK(runs[0].state == RunState::Dead);
    CHECK(runs[1].state == RunState::Over);
    CHECK(runs[2].state == RunState::Elsewhere);
    const RunsRemoved done = remove_runs(dir.path(), runs, 0, false);
    CHECK(done.removed == std::vector<std::string>{"job_00000003", "job_00000002"});
    CHECK(done.left.empty());
    REQUIRE(done.unsure.size() == 1);
    CHECK(done.unsure[0].starts_with("job_00000001: a ddprun on gpu-07 made it, "));
    CHECK(done.failed.empty());
    CHECK(fs::exists(dir / "job_00000001/run.json"));
}

TEST_CASE("a run is looked at again before it is removed: its machine may just have begun it") {
    const TempDir dir;
    make_begun(dir / "job_00000001", 1000, note_of("train.py"));
    const std::vector<FoundRun> runs = runs_in(dir.path());
    REQUIRE(runs[0].state == RunState::Dead);
    make_begun(dir / "job_00000001", 2000, note_of_elsewhere());
    fs::create_directories(dir / "job_00000002/by-rank");  // no note yet
    CHECK(remove_runs(dir.path(), runs, 0, false).unsure.size() == 1);
    CHECK(remove_runs(dir.path(), runs_in(dir.path()), 0, false).removed.empty());
    CHECK(runs_in(dir.path()).size() == 2);
}

TEST_CASE("machines are the same by name and boot, a container on the same kernel is another") {
    const ddprun::MachineIdentity here{.name = "a", .boot_id = "1", .machine_id = "x"};
    CHECK(ddprun::is_same_boot(here, here));
    CHECK_FALSE(ddprun::is_same_boot(here, {.name = "b", .boot_id = "1", .machine_id = "x"}));
    CHECK_FALSE(ddprun::is_same_boot(here, {.name = "a", .boot_id = "2", .machine_id = "x"}));
    CHECK_FALSE(ddprun::is_same_boot({.name = "a"}, {.name = "a"}));
    CHECK(ddprun::may_be_earlier_boot(here, {.name = "a", .boot_id = "2", .machine_id = "x"}));
    CHECK(ddprun::may_be_earlier_boot(here, {.name = "a"}));  // all that an older ddprun wrote
    CHECK_FALSE(
        ddprun::may_be_earlier_boot(here, {.name = "a", .boot_id = "2", .machine_id = "y"}));
    CHECK_FALSE(ddprun::may_be_earlier_boot(here, {.name = "a", .boot_id = "2"}));
    CHECK_FALSE(
        ddprun::may_be_earlier_boot(here, {.name = "b", .boot_id = "2", .machine_id = "x"}));
    // An image may come with an empty /etc/machine-id.
    const ddprun::MachineIdentity image{.name = "a", .boot_id = "1"};
    CHECK(ddprun::may_be_earlier_boot(image, {.name = "a", .boot_id = "2"}));
    CHECK_FALSE(ddprun::may_be_earlier_boot(image, {.name = "b", .boot_id = "2"}));
    CHECK_FALSE(
        ddprun::may_be_earlier_boot(image, {.name = "a", .boot_id = "2", .machine_id = "x"}));
    CHECK_FALSE(ddprun::read_machine_identity().name.empty());
}

TEST_CASE("the note of an older ddprun names its machine by its node's name") {
    const auto note =
        parse_run_note(R"({"program": "x", "hostname": "gpu-07#1", "started_ms": 1})");
    REQUIRE(note);
    CHECK(note->machine == ddprun::MachineIdentity{.name = "gpu-07"});
}

TEST_CASE("a link to the latest run that leads nowhere goes with the run") {
    const TempDir dir;
    make_over(dir / "job_00000001", 1000);
    CHECK(remove_runs(dir.path(), runs_in(dir.path()), 0, false).removed.size() == 1);
    CHECK(fs::is_empty(dir.path()));
}

TEST_CASE("another user's run is neither listed nor removed") {
    if (::geteuid() != 0) {
        WARN("LEFT OUT: only root can give a folder away");
        return;
    }
    const TempDir dir;
    make_over(dir / "job_00000001", 1000);
    const std::vector<FoundRun> runs = runs_in(dir.path());
    REQUIRE(::chown((dir / "job_00000001").c_str(), 64123, 64123) == 0);
    CHECK(runs_in(dir.path()).empty());
    const RunsRemoved done = remove_runs(dir.path(), runs, 0, false);
    CHECK(done.failed.size() == 1);
    CHECK(fs::exists(dir / "job_00000001/run.json"));
}
