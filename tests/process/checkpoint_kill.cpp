// Writers of checkpoints that die at any moment. The parent always waits for a word of the child
// through a pipe and then kills it, so that the moment is somewhere in what the child does next.

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/os/unique_fd.hpp"
#include "base/rng.hpp"
#include "tests/unit/checkpoint_fixture.hpp"
#include "worker_runtime/checkpoint/folder.hpp"

using namespace ddprun;
using namespace ddprun::worker;
using namespace ddprun::worker::test;

namespace {

// Reader of what the child says; end of file when the child is gone.
struct Child {
    pid_t pid = -1;
    UniqueFd words;

    // The next word; nothing when the child is gone.
    [[nodiscard]] std::optional<char> next_word() const {
        char word = 0;
        return ::read(words.get(), &word, 1) == 1 ? std::optional(word) : std::nullopt;
    }
    int wait() const {  // its status
        int status = 0;
        REQUIRE(::waitpid(pid, &status, 0) == pid);
        return status;
    }
    void kill_and_wait() const {
        ::kill(pid, SIGKILL);
        CHECK(WIFSIGNALED(wait()));
    }
};

template <typename Body>
Child fork_child(const Body& body) {
    int ends[2] = {-1, -1};
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        ::close(ends[0]);
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() == parent) {
            body(ends[1]);
        }
        ::_exit(9);
    }
    ::close(ends[1]);
    return {.pid = pid, .words = UniqueFd(ends[0])};
}

// The bytes of a step's tensor say the step and which writing of it this is.
std::string content(std::int64_t step, unsigned writing) {
    return some_bytes(200'000 + step, static_cast<unsigned>(step) * 2 + writing);
}

Result<std::string> publish(const std::string& dir, std::int64_t step, unsigned writing,
                            const PublishOptions& options) {
    const std::string bytes = content(step, writing);
    return publish_checkpoint(dir, {.step = step, .values = {{"writing", std::to_string(writing)}}},
                              {tensor("w", "U8", {static_cast<std::int64_t>(bytes.size())}, bytes)},
                              options);
}

// Publishes each step twice, the second in the place of the first, and says a word at each stage.
void publish_on_and_on(const std::string& dir, std::int64_t from, int words) {
    const auto say = [&](char word) { return ::write(words, &word, 1) == 1; };
    const PublishOptions options{.keep = 2, .is_isolated = [&] { return !say('w'); }};
    for (std::int64_t step = from; say('b'); ++step) {
        for (const unsigned writing : {0U, 1U}) {
            if (!publish(dir, step, writing, options)) {
                return;
            }
            say('p');
        }
    }
}

}  // namespace

TEST_CASE("whenever a writer is killed, the newest checkpoint is whole and nothing stays aside") {
    const TempDir folder;
    Rng rng(random_seed());
    std::int64_t newest = 0;
    int left_aside = 0;
    for (int round = 0; round < 60; ++round) {
        const Child child =
            fork_child([&](int words) { publish_on_and_on(folder.path(), newest + 1, words); });
        int published = 0;
        for (std::uint64_t i = rng.below(8); i > 0; --i) {
            const std::optional<char> word = child.next_word();
            REQUIRE(word);
            published += *word == 'p' ? 1 : 0;
        }
        child.kill_and_wait();

        const std::vector<std::int64_t> steps = list_checkpoints(folder.path()).value();
        const std::int64_t least = newest + (published + 1) / 2;
        REQUIRE((steps.empty() ? 0 : steps.front()) >= least);
        for (const std::int64_t step : steps) {
            const Result<LoadedCheckpoint> loaded = read_checkpoint(folder.path(), step);
            REQUIRE(loaded);
            const auto writing =
                static_cast<unsigned>(std::stoul(loaded->info.values.at("writing")));
            CHECK(text_of(loaded->tensors.at("w")) == content(step, writing));
        }
        newest = steps.empty() ? 0 : steps.front();
        left_aside += names_in(folder.path()).size() > steps.size() ? 1 : 0;
        remove_leftovers(folder.path());
        CHECK(names_in(folder.path()).size() == steps.size());
        CHECK(list_checkpoints(folder.path()).value() == steps);
    }
    CHECK(newest > 0);
    CHECK(left_aside > 0);  // or no writer was killed in the middle
}

TEST_CASE("a writer killed before its rename changes nothing that readers see") {
    const TempDir folder;
    REQUIRE(publish(folder.path(), 1, 0, {}));
    for (const std::int64_t step : {1, 2}) {
        const Child child = fork_child([&](int /*words*/) {
            (void)publish(folder.path(), step, 1, {.keep = 1, .is_isolated = [] {
                                                       ::raise(SIGKILL);
                                                       return false;
                                                   }});
        });
        CHECK_FALSE(child.next_word());
        child.kill_and_wait();
        CHECK(list_checkpoints(folder.path()).value() == std::vector<std::int64_t>{1});
        CHECK(read_checkpoint(folder.path(), 1).value().info.values.at("writing") == "0");
        CHECK(names_in(folder.path()).size() == 2);
        remove_leftovers(folder.path());
        CHECK(names_in(folder.path()).size() == 1);
    }
}

TEST_CASE("a writer whose folder aside was removed publishes nothing") {
    const TempDir folder;
    const PublishOptions options{.keep = 1, .is_isolated = [&] {
                                     remove_leftovers(folder.path());
                                     return false;
                                 }};
    const Result<std::string> refused = publish(folder.path(), 1, 0, options);
    REQUIRE_FALSE(refused);
    CHECK_THAT(refused.error().what, Catch::Contains("cannot be renamed"));
    CHECK(names_in(folder.path()).empty());
}

TEST_CASE("a full disk is an error that leaves the disk as it was") {
    const TempDir folder;
    std::string said;
    const Child child = fork_child([&](int words) {
        std::string text = "no mount";
        if (::unshare(CLONE_NEWNS) == 0 &&
            ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
            ::mount("full", folder.path().c_str(), "tmpfs", 0, "size=256k") == 0) {
            // One of 200 kB fits, a second one does not, nor does it in the place of the first.
            const bool is_first_there = publish(folder.path(), 1, 0, {}).has_value();
            const Result<std::string> second = publish(folder.path(), 2, 0, {});
            const Result<std::string> again = publish(folder.path(), 1, 1, {});
            const bool is_first_left =
                names_in(folder.path()).size() == 1 &&
                read_checkpoint(folder.path(), 1).value().info.values.at("writing") == "0";
            text = !is_first_there || second || again || !is_first_left ? "wrong"
                                                                        : second.error().what;
        }
        (void)!::write(words, text.data(), text.size());
    });
    while (const std::optional<char> letter = child.next_word()) {
        said += *letter;
    }
    child.wait();
    if (said == "no mount") {
        WARN("SKIPPED: only root may mount a small disk");
        return;
    }
    CHECK_THAT(said, Catch::Contains("checkpoint of step 2 was not written to " + folder.path()));
    CHECK_THAT(said, Catch::Contains("No space left on device"));
}
