// Goal: the death of a process that holds its life lock is known before it can be waited for,
// exactly as it will be, and nothing else is taken for it. Method: forked processes, with the lock
// taken by the function that the worker runtime calls or by ddprun-preload.so.

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "agent/daemon/dying.hpp"
#include "agent/daemon/generation_on_node.hpp"
#include "agent/daemon/life_watch.hpp"
#include "agent/process/worker_page.hpp"
#include "tests/process/keeper_fixture.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/old_kernel.hpp"
#include "tests/support/places.hpp"
#include "worker_runtime/env/life_lock.hpp"
#include "worker_runtime/env/page.hpp"

namespace ddprun::agent {

namespace {

constexpr std::chrono::seconds kPatience{30};

struct Sign {
    LocalRank local_rank;
    FatalSignal told;
};

/// The finds of a watch, for the test's thread.
class Signs {
public:
    void add(Sign sign) {
        const std::lock_guard lock(mutex_);
        found_.push_back(sign);
        has_more_.notify_all();
    }
    std::optional<Sign> next() {
        std::unique_lock lock(mutex_);
        if (!has_more_.wait_for(lock, kPatience, [this] { return !found_.empty(); })) {
            return std::nullopt;
        }
        const Sign sign = found_.front();
        found_.pop_front();
        return sign;
    }
    bool is_empty() {
        const std::lock_guard lock(mutex_);
        return found_.empty();
    }

private:
    std::mutex mutex_;
    std::condition_variable has_more_;
    std::deque<Sign> found_;
};

/// One page with two workers that is watched, and a worker that can be started.
class Life {
public:
    Life()
        : page_(std::move(*WorkerPage::create(Generation(1), 2, Instant::max()))),
          watch_(
              *page_,
              [this](LocalRank local_rank, FatalSignal told) {
                  signs.add({local_rank, told});
              },
              [this] { saves.add({}); }) {}
    ~Life() { end(); }

    /// Forks worker 1, which takes its lock and then does `work`. Returns when it has.
    template <typename Work>
    void start(const Work& work) {
        run([&] {
            const auto page = worker::map_lasting_page(path.c_str(), 1);
            if (!worker::hold_life_lock(page)) {
                _exit(98);
            }
            tell("r");
            work();
        });
        REQUIRE(read_exactly(from_worker.read_end, 1) == "r");
    }

    /// Starts a shell as worker 1, which preloads the library and whose stdout is from_worker.
    void start_shell(const std::string& script) {
        run([&] {
            setenv("LD_PRELOAD", (bin_dir() + "/ddprun-preload.so").c_str(), 1);
            setenv("DDPRUN_PAGE", path.c_str(), 1);
            setenv("DDPRUN_SLOT", "1", 1);
            dup2(from_worker.write_end.get(), STDOUT_FILENO);
            execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
        });
    }

    /// For the worker.
    void tell(const char* word) const {
        if (write(from_worker.write_end.get(), word, 1) != 1) {
            _exit(97);
        }
    }

    /// The first sign after which the worker is known to end badly.
    std::optional<WorkerEnd> abnormal_end() {
        while (const std::optional<Sign> sign = signs.next()) {
            CHECK(sign->local_rank == LocalRank(1));
            if (const std::optional<WorkerEnd> end = abnormal_end_of(pid, sign->told)) {
                return end;
            }
        }
        return std::nullopt;
    }

    /// Waits for its end: the status.
    int end() {
        int status = -1;
        if (pid > 0) {
            waitpid(pid, &status, 0);
            pid = 0;
        }
        return status;
    }

    Signs signs;
    Signs saves;  ///< one each time when there is news of saves
    TestPipe from_worker;
    int pid = 0;

private:
    template <typename Child>
    void run(const Child& child) {
        pid = fork();
        REQUIRE(pid >= 0);
        if (pid == 0) {
            // As a worker is started: no handlers of the test's, a session of its own, no cores.
            for (int signal = 1; signal < NSIG; ++signal) {
                std::signal(signal, SIG_DFL);
            }
            const rlimit no_core{0, 0};
            setrlimit(RLIMIT_CORE, &no_core);
            setsid();
            child();
            _exit(99);
        }
    }

    std::unique_ptr<WorkerPage> page_;

public:
    const std::string path = fmt::format("/proc/{}/fd/{}", getpid(), page_->file());

private:
    LifeWatch watch_;
};

/// A sanitizer would see it before the processor does.
[[gnu::no_sanitize("undefined", "address", "thread")]] void write_nowhere() {
    volatile int* volatile nowhere = nullptr;
    *nowhere = 1;
}

/// For this process and what it starts, from now on, futex_waitv() fails so.
bool deny_waiting_for_several(unsigned int error) {
    std::array<sock_filter, 4> program{{
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_futex_waitv},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | error},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
    }};
    const sock_fprog filter{program.size(), program.data()};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0;
}

bool is_left_out() {
    if (LifeWatch::is_possible()) {
        return false;
    }
    WARN("SKIPPED: this kernel cannot wait for several futexes (before 5.16)");
    return true;
}

}  // namespace

TEST_CASE("a worker that is killed is known to die by that signal") {
    if (is_left_out()) {
        return;
    }
    Life life;
    life.start([] { pause(); });
    CHECK(life.signs.is_empty());
    REQUIRE(kill(life.pid, SIGKILL) == 0);
    const std::optional<WorkerEnd> end = life.abnormal_end();
    REQUIRE(end);
    CHECK(end->pid == life.pid);
    CHECK(end->signal == SIGKILL);
    CHECK_FALSE(end->exit_code);
    CHECK(WTERMSIG(life.end()) == SIGKILL);
}

TEST_CASE("news of a worker's saves wakes the agent, and is no sign of its death") {
    if (is_left_out()) {
        return;
    }
    Life life;
    life.start([&life] {
        Result<worker::Page> page =
            worker::Page::open(life.path, Generation(1), LocalRank(1), /*local_world_size=*/2);
        if (!page) {
            _exit(96);
        }
        page->tell_save_begun(7);
        page->tell_save_stalled(Duration::zero());
        page->tell_save_ended({.is_complete = true});
        pause();
    });
    CHECK(life.saves.next());
    CHECK(life.signs.is_empty());
    REQUIRE(kill(life.pid, SIGKILL) == 0);
}

TEST_CASE("a sign of a worker that has not been reported as started is kept until it is") {
    if (is_left_out()) {
        return;
    }
    Life life;
    life.start([] { _exit(3); });
    const std::optional<Sign> sign = life.signs.next();
    REQUIRE(sign);
    WorkerSpec worker;
    worker.local_rank = LocalRank(0);
    GenerationOnNode generation({.generation = Generation(1), .workers = {worker}}, {}, {});
    CHECK_FALSE(generation.abnormal_end(LocalRank(0), sign->told));
    const std::optional<FatalSignal> kept = generation.worker_started(LocalRank(0), life.pid);
    REQUIRE(kept);
    const std::optional<WorkerEnd> end = generation.abnormal_end(LocalRank(0), *kept);
    REQUIRE(end);
    CHECK(end->exit_code == 3);
    CHECK_FALSE(generation.worker_started(LocalRank(0), life.pid));
}

TEST_CASE("a worker that exits is known to exit with that code, and one that exits 0 not at all") {
    if (is_left_out()) {
        return;
    }
    const int code = GENERATE(0, 1, 3, 255);
    Life life;
    life.start([code] { _exit(code); });
    const std::optional<Sign> sign = life.signs.next();
    REQUIRE(sign);
    CHECK(sign->told.pid == 0);
    const std::optional<WorkerEnd> end = abnormal_end_of(life.pid, sign->told);
    CHECK(end.has_value() == (code != 0));
    CHECK(end.value_or(WorkerEnd{}).exit_code.value_or(0) == code);
    CHECK(WEXITSTATUS(life.end()) == code);
}

TEST_CASE("a signal that writes a core is told by the worker itself, and has its effect") {
    if (is_left_out()) {
        return;
    }
    const int signal = GENERATE(SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP);
    Life life;
    life.start([signal] { raise(signal); });
    const std::optional<Sign> sign = life.signs.next();
    REQUIRE(sign);
    CHECK(sign->told.pid == life.pid);
    CHECK(sign->told.signal == signal);
    CHECK(abnormal_end_of(life.pid, sign->told)->signal == signal);
    CHECK(WTERMSIG(life.end()) == signal);
}

TEST_CASE("an instruction that fails, or a stack that is used up, is told too") {
#ifdef __SANITIZE_THREAD__
    WARN("LEFT OUT: the thread sanitizer keeps SIGSEGV to itself");
    return;
#endif
    if (is_left_out()) {
        return;
    }
    Life life;
    SECTION("an address that is not there") {
        life.start(write_nowhere);
    }
    SECTION("no stack left") {
        life.start([] {
            struct Deep {
                // Each frame is needed by the next: no compiler makes a loop of it.
                static int dig(const volatile char* above) {
                    std::array<volatile char, 4096> used{};
                    used[0] = *above;
                    return *above != 0 ? 0 : dig(used.data()) + used[0];
                }
            };
            const char first = 0;
            _exit(Deep::dig(&first));
        });
    }
    const std::optional<Sign> sign = life.signs.next();
    REQUIRE(sign);
    CHECK(sign->told.signal == SIGSEGV);
    CHECK(WTERMSIG(life.end()) == SIGSEGV);
}

TEST_CASE("the death of a worker's child is not the worker's") {
    if (is_left_out()) {
        return;
    }
    Life life;
    life.start([] {
        const int child = fork();
        if (child == 0) {
            raise(SIGSEGV);
        }
        int status = 0;
        waitpid(child, &status, 0);
        _exit(WTERMSIG(status) == SIGSEGV ? 0 : 1);
    });
    CHECK(WEXITSTATUS(life.end()) == 0);
    const std::optional<Sign> sign = life.signs.next();
    REQUIRE(sign);
    CHECK(sign->told.pid == 0);
    CHECK(life.signs.is_empty());
}

TEST_CASE("a worker whose first thread has ended lives, as far as anybody knows") {
    if (is_left_out()) {
        return;
    }
    Life life;
    life.start([] {
        pthread_t other{};
        pthread_create(
            &other, nullptr,
            [](void*) -> void* {
                pause();
                return nullptr;
            },
            nullptr);
        syscall(SYS_exit, 0);  // of this thread, without unwinding the test's
    });
    const std::optional<Sign> sign = life.signs.next();
    REQUIRE(sign);
    CHECK_FALSE(abnormal_end_of(life.pid, sign->told));
    REQUIRE(kill(life.pid, SIGKILL) == 0);
    CHECK(WTERMSIG(life.end()) == SIGKILL);
}

TEST_CASE("a worker that becomes another program lives, and its death is known as before") {
    if (is_left_out()) {
        return;
    }
    Life life;
    life.start_shell("exec sh -c 'echo in; exec sh -c \"echo on; while :; do sleep 100; done\"'");
    CHECK(read_exactly(life.from_worker.read_end, 6) == "in\non\n");
    REQUIRE(kill(-life.pid, SIGKILL) == 0);
    const std::optional<WorkerEnd> end = life.abnormal_end();
    REQUIRE(end);
    CHECK(end->signal == SIGKILL);
}

TEST_CASE("a program of any kind tells its signals when the library is preloaded") {
    if (is_left_out()) {
        return;
    }
    Life life;
    life.start_shell("kill -ABRT $$");
    const std::optional<Sign> sign = life.signs.next();
    REQUIRE(sign);
    CHECK(sign->told.pid == life.pid);
    CHECK(sign->told.signal == SIGABRT);
    CHECK(WTERMSIG(life.end()) == SIGABRT);
}

TEST_CASE("what is preloaded into a worker's descendants leaves its lock alone") {
    if (is_left_out()) {
        return;
    }
    Life life;
    // A session of its own, as the worker has.
    life.start_shell("setsid sh -c 'kill -SEGV $$'; exit 0");
    CHECK(WEXITSTATUS(life.end()) == 0);
    const std::optional<Sign> sign = life.signs.next();
    REQUIRE(sign);
    CHECK(sign->told.pid == 0);
    CHECK(life.signs.is_empty());
}

TEST_CASE("who says that it dies and is not the worker is not believed") {
    CHECK_FALSE(abnormal_end_of(getpid(), {.pid = getpid() + 1, .signal = SIGSEGV}));
    CHECK_FALSE(abnormal_end_of(0, {.pid = getpid(), .signal = SIGSEGV}));
    CHECK_FALSE(abnormal_end_of(getpid(), {}));
}

TEST_CASE("a watch for which the kernel has no memory sees a death later") {
    if (is_left_out()) {
        return;
    }
    const pid_t watcher = fork();
    REQUIRE(watcher >= 0);
    if (watcher == 0) {
        if (!deny_waiting_for_several(ENOMEM)) {
            _exit(test::kNoFilter);
        }
        Life life;
        life.start([] { kill(getpid(), SIGKILL); });
        const std::optional<WorkerEnd> end = life.abnormal_end();
        _exit(end && end->signal == SIGKILL ? 0 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(watcher, &status, 0) == watcher);
    if (WIFEXITED(status) && WEXITSTATUS(status) == test::kNoFilter) {
        WARN("LEFT OUT: this machine allows no seccomp filter");
        return;
    }
    CHECK(status == 0);
}

TEST_CASE("a program without a page runs as if the library were not there") {
    Life life;
    life.start_shell("DDPRUN_PAGE= exec sh -c 'echo on'");
    CHECK(read_exactly(life.from_worker.read_end, 3) == "on\n");
    CHECK(WEXITSTATUS(life.end()) == 0);
}

}  // namespace ddprun::agent
