// WorkerOutput with real pipes and, where something dies, real processes. A console is a file, or
// a pipe where it matters when bytes arrive or that no process reads them.

#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <nlohmann/json.hpp>

#include "agent/output/event_file.hpp"
#include "agent/output/log_errors.hpp"
#include "agent/output/log_file.hpp"
#include "agent/output/lost_lines.hpp"
#include "agent/output/run_folder.hpp"
#include "agent/output/worker_output.hpp"
#include "base/rng.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using ddprun::Error;
using ddprun::ErrorCode;
using ddprun::Generation;
using ddprun::Instant;
using ddprun::LocalRank;
using ddprun::Milliseconds;
using ddprun::Rank;
using ddprun::Result;
using ddprun::Rng;
using ddprun::UniqueFd;
using ddprun::agent::Collected;
using ddprun::agent::EventFile;
using ddprun::agent::LogErrors;
using ddprun::agent::LogFile;
using ddprun::agent::lost_text;
using ddprun::agent::LostLines;
using ddprun::agent::LostLog;
using ddprun::agent::OutputChoice;
using ddprun::agent::OutputOptions;
using ddprun::agent::OutputPipes;
using ddprun::agent::WorkerOutput;
using ddprun::test::read_file;
using ddprun::test::TempDir;

namespace {

const Generation kFirst(1);

/// As long as it lives this process can open no file.
class NoMoreFiles {
public:
    NoMoreFiles() {
        REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
        const rlimit none{0, before_.rlim_max};
        REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    }
    ~NoMoreFiles() { CHECK(::setrlimit(RLIMIT_NOFILE, &before_) == 0); }
    NoMoreFiles(const NoMoreFiles&) = delete;
    NoMoreFiles& operator=(const NoMoreFiles&) = delete;

private:
    rlimit before_{};
};

/// As long as it lives this process can make no file larger.
class NoMoreBytes {
public:
    explicit NoMoreBytes(rlim_t size) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
        REQUIRE(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
        const rlimit most{size, before_.rlim_max};
        REQUIRE(::setrlimit(RLIMIT_FSIZE, &most) == 0);
    }
    ~NoMoreBytes() {
        CHECK(::setrlimit(RLIMIT_FSIZE, &before_) == 0);
        ::signal(SIGXFSZ, handler_);
    }
    NoMoreBytes(const NoMoreBytes&) = delete;
    NoMoreBytes& operator=(const NoMoreBytes&) = delete;

private:
    sighandler_t handler_;
    rlimit before_{};
};

UniqueFd create(const std::string& path) {
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    REQUIRE(fd.is_open());
    return fd;
}

/// A WorkerOutput whose consoles are the files `out` and `err` unless a test gives others.
class Fixture {
public:
    Fixture() : out_file_(create(dir / "out")), err_file_(create(dir / "err")) {
        options.log_root = dir / "logs";
        options.hostname = "host";
        options.console_out = out_file_.get();
        options.console_err = err_file_.get();
    }

    WorkerOutput& output() {
        if (!output_) {
            output_.emplace(options, io_.get_executor());
        }
        return *output_;
    }

    OutputPipes open(int local_rank, Generation generation = kFirst) {
        auto pipes = output().open(generation, LocalRank(local_rank), Rank(local_rank), 4,
                                   log_dir(local_rank, generation));
        REQUIRE(pipes.has_value());
        return std::move(*pipes);
    }

    std::string log_dir(int local_rank, Generation generation = kFirst) const {
        return options.log_root + "/attempt_" + std::to_string(generation.value() - 1) + "/" +
               std::to_string(local_rank);
    }

    std::string log(int local_rank, const std::string& name, Generation generation = kFirst) const {
        return read_file(log_dir(local_rank, generation) + "/" + name);
    }

    Collected collect(int local_rank, Generation generation = kFirst) {
        std::optional<Collected> collected;
        output().collect(generation, LocalRank(local_rank),
                         [&](Collected answer) { collected = std::move(answer); });
        run_until([&] { return collected.has_value(); });
        return *collected;
    }

    void wait_ready() {
        bool is_ready = false;
        output().when_ready([&] { is_ready = true; });
        run_until([&] { return is_ready; });
    }

    /// Everything is in the files afterwards.
    void end() { output_.reset(); }

    std::string out() const { return read_file(dir / "out"); }
    std::string err() const { return read_file(dir / "err"); }

    TempDir dir;
    OutputOptions options;

private:
    void run_until(const std::function<bool()>& is_true) {
        while (!is_true()) {
            io_.restart();
            io_.run_one_for(ddprun::test::kDeadline);
        }
    }

    boost::asio::io_context io_;
    // Counts as work, so that run_one() waits for what other threads post.
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
        io_.get_executor()};
    UniqueFd out_file_;
    UniqueFd err_file_;
    std::optional<WorkerOutput> output_;
};

void write_all(const UniqueFd& fd, std::string_view text) {
    while (!text.empty()) {
        const ssize_t count = ::write(fd.get(), text.data(), text.size());
        if (count < 0) {
            _exit(3);
        }
        text.remove_prefix(static_cast<std::size_t>(count));
    }
}

/// Reads exactly `size` bytes, or what comes before the end.
std::string read_bytes(int fd, std::size_t size) {
    std::string text(size, '\0');
    std::size_t have = 0;
    while (have < size) {
        const ssize_t count = ::read(fd, text.data() + have, size - have);
        if (count <= 0) {
            break;
        }
        have += static_cast<std::size_t>(count);
    }
    text.resize(have);
    return text;
}

std::string random_bytes(std::uint64_t seed, std::size_t size) {
    Rng rng(seed);
    std::string bytes(size, '\0');
    for (char& byte : bytes) {
        byte = static_cast<char>(rng.next());
    }
    return bytes;
}

struct Pipe {
    UniqueFd read;
    UniqueFd write;
};

Pipe make_pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

/// A terminal whose reader thread takes all output.
struct Terminal {
    Terminal() {
        int ends[2];
        REQUIRE(::openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr) == 0);
        master.reset(ends[0]);
        slave.reset(ends[1]);
        reader = std::thread([fd = master.get()] {
            std::array<char, 4096> buffer;
            while (::read(fd, buffer.data(), buffer.size()) > 0) {}
        });
    }
    ~Terminal() {
        slave.reset();
        reader.join();
    }
    Terminal(const Terminal&) = delete;
    Terminal& operator=(const Terminal&) = delete;

    UniqueFd master;
    UniqueFd slave;
    std::thread reader;
};

/// Runs `work` in a child process; killed if the test ends before it has.
class Child {
public:
    explicit Child(const std::function<void()>& work) : pid_(::fork()) {
        REQUIRE(pid_ >= 0);
        if (pid_ == 0) {
            work();
            ::_exit(0);
        }
    }
    ~Child() { kill_and_wait(); }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    void kill_and_wait() {
        if (pid_ > 0) {
            ::kill(pid_, SIGKILL);
            wait();
        }
    }
    void wait() {
        if (pid_ > 0) {
            REQUIRE(::waitpid(std::exchange(pid_, -1), nullptr, 0) > 0);
        }
    }

private:
    pid_t pid_;
};

}  // namespace

TEST_CASE("every byte written before a kill is in the log, in order and once") {
    constexpr int kWorkers = 3;
    Rng rng(11);
    for (int round = 0; round < 8; ++round) {
        Fixture fixture;
        fixture.options.prefixes = round % 2 == 0;
        struct Counters {
            std::array<std::atomic<std::size_t>, kWorkers> out;
            std::array<std::atomic<std::size_t>, kWorkers> err;
        };
        void* shared = ::mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        REQUIRE(shared != MAP_FAILED);
        auto* written = ::new (shared) Counters{};
        const std::string bytes = random_bytes(static_cast<std::uint64_t>(round), 1 << 20);
        std::vector<std::unique_ptr<Child>> children;
        std::vector<UniqueFd> signs;
        for (int i = 0; i < kWorkers; ++i) {
            OutputPipes pipes = fixture.open(i);
            Pipe sign = make_pipe();
            const std::size_t threshold = rng.below(bytes.size());
            const std::uint64_t seed = rng.next();
            children.push_back(std::make_unique<Child>([&] {
                // Goes on for ever; reports when it has come far enough to be killed.
                Rng sizes(seed);
                for (;;) {
                    const bool is_err = sizes.chance(1, 4);
                    auto& count =
                        (is_err ? written->err : written->out).at(static_cast<std::size_t>(i));
                    const std::size_t at = count % bytes.size();
                    const std::size_t size = std::min(bytes.size() - at, 1 + sizes.below(9000));
                    const ssize_t done =
                        ::write((is_err ? pipes.err : pipes.out).get(), bytes.data() + at, size);
                    if (done < 0) {
                        ::_exit(1);
                    }
                    count += static_cast<std::size_t>(done);
                    if (!is_err && count >= threshold) {
                        static_cast<void>(!::write(sign.write.get(), "x", 1));
                    }
                }
            }));
            signs.push_back(std::move(sign.read));
        }
        for (int i = 0; i < kWorkers; ++i) {
            const auto at = static_cast<std::size_t>(i);
            REQUIRE(read_bytes(signs[at].get(), 1) == "x");
            children[at]->kill_and_wait();
            static_cast<void>(fixture.collect(i));
        }
        fixture.output().close(kFirst);
        fixture.end();
        for (int i = 0; i < kWorkers; ++i) {
            const auto at = static_cast<std::size_t>(i);
            const auto check = [&](const std::string& log, std::size_t confirmed) {
                // A kill may come between the write and its being counted.
                REQUIRE(log.size() >= confirmed);
                for (std::size_t from = 0; from < log.size(); from += bytes.size()) {
                    const std::size_t size = std::min(bytes.size(), log.size() - from);
                    REQUIRE(log.compare(from, size, bytes, 0, size) == 0);
                }
            };
            check(fixture.log(i, "stdout.log"), written->out.at(at));
            check(fixture.log(i, "stderr.log"), written->err.at(at));
        }
        ::munmap(shared, sizeof(Counters));
    }
}

TEST_CASE("ten megabytes go through raw, to the file and to the console alike") {
    Fixture fixture;
    const std::string bytes = random_bytes(5, 10 << 20);
    OutputPipes pipes = fixture.open(0);
    Child child([&] { write_all(pipes.out, bytes); });
    child.wait();
    static_cast<void>(fixture.collect(0));
    fixture.end();
    CHECK((fixture.log(0, "stdout.log") == bytes));
    CHECK((fixture.out() == bytes));
}

TEST_CASE("the tail is exactly the last 64 KiB of stderr") {
    Fixture fixture;
    const std::string bytes = random_bytes(6, 300000);
    OutputPipes pipes = fixture.open(0);
    Child child([&] { write_all(pipes.err, bytes); });
    child.wait();
    const Collected collected = fixture.collect(0);
    CHECK((collected.stderr_tail == bytes.substr(bytes.size() - 65536)));
    CHECK(collected.is_complete);
}

TEST_CASE("with prefixes only whole lines of one worker appear, each stream on its own side") {
    Fixture fixture;
    fixture.options.prefixes = true;
    OutputPipes a = fixture.open(0);
    OutputPipes b = fixture.open(1);
    for (int i = 0; i < 500; ++i) {
        write_all(a.out, "a" + std::to_string(i));
        write_all(b.out, "b" + std::to_string(i));
        write_all(a.out, "-end\n");
        write_all(b.err, "warning\n");
        write_all(b.out, "-end\n");
    }
    write_all(a.out, "unfinished");
    fixture.output().close(kFirst);
    fixture.end();
    std::string expected_a;
    std::string expected_b;
    std::string expected_err;
    for (int i = 0; i < 500; ++i) {
        expected_a += "[host 0] a" + std::to_string(i) + "-end\n";
        expected_b += "[host 1] b" + std::to_string(i) + "-end\n";
        expected_err += "[host 1] warning\n";
    }
    expected_a += "[host 0] unfinished\n";
    std::string found_a;
    std::string found_b;
    const std::string out = fixture.out();
    for (std::size_t at = 0; at < out.size();) {
        const std::size_t end = out.find('\n', at);
        REQUIRE(end != std::string::npos);
        const std::string line = out.substr(at, end + 1 - at);
        (line.rfind("[host 0] ", 0) == 0 ? found_a : found_b) += line;
        at = end + 1;
    }
    CHECK(found_a == expected_a);
    CHECK(found_b == expected_b);
    CHECK(fixture.err() == expected_err);
}

TEST_CASE("without prefixes the lines of several workers do not mix, and keep their bytes") {
    Fixture fixture;
    fixture.options.console = {{0, {}}, {1, {}}};
    fixture.options.console_err = fixture.options.console_out;
    OutputPipes a = fixture.open(0);
    OutputPipes b = fixture.open(1);
    std::string expected_a;
    std::string expected_b;
    for (std::size_t i = 0; i < 200; ++i) {
        // Longer than a pipe takes at once, so that each is read in several pieces.
        const std::string line_a = "a\r" + std::string(i * 97 % 4000, 'a');
        const std::string line_b = "b\r" + std::string(i * 89 % 4000, 'b');
        write_all(a.out, line_a);
        write_all(b.out, line_b + "\n");
        write_all(b.err, "c");
        write_all(a.out, "!\n");
        write_all(b.err, "c\n");
        expected_a += line_a + "!\n";
        expected_b += line_b + "\n";
    }
    write_all(a.out, "unfinished");
    expected_a += "unfinished\n";
    fixture.output().close(kFirst);
    fixture.end();
    std::string found_a;
    std::string found_b;
    std::string found_c;
    std::istringstream lines(fixture.out());
    for (std::string line; std::getline(lines, line);) {
        (line[0] == 'b' ? found_b : line == "cc" ? found_c : found_a) += line + "\n";
    }
    CHECK(found_a == expected_a);
    CHECK(found_b == expected_b);
    CHECK(found_c.size() == 600);
}

TEST_CASE("the one worker of several that is shown keeps its unfinished lines") {
    Fixture fixture;
    fixture.options.console = {{0, {}}, {1, {}}};
    fixture.options.ranks_filter = {.ranks = {1}, .has_last = false};
    OutputPipes hidden = fixture.open(0);
    OutputPipes shown = fixture.open(1);
    write_all(hidden.out, "hidden\n");
    write_all(shown.out, "\r50 %");
    fixture.output().close(kFirst);
    fixture.end();
    CHECK(fixture.out() == "\r50 %");
}

TEST_CASE("which streams of a worker are shown where the report goes is known") {
    const bool is_one_place = GENERATE(true, false);
    Fixture fixture;
    if (is_one_place) {
        fixture.options.console_err = fixture.options.console_out;
    }
    fixture.options.console[1] = {.shows_stdout = true, .shows_stderr = false};
    fixture.options.ranks_filter = {.ranks = {0, 1}, .has_last = false};
    for (int rank = 0; rank < 3; ++rank) {
        static_cast<void>(fixture.open(rank));
    }
    const auto shown = [&fixture](int rank) {
        const ddprun::agent::WordsShown words = fixture.output().words_shown(LocalRank(rank));
        return std::pair(words.out, words.err);
    };
    CHECK(shown(0) == std::pair(is_one_place, true));
    CHECK(shown(1) == std::pair(is_one_place, false));
    CHECK(shown(2) == std::pair(false, false));
    CHECK(shown(3) == std::pair(false, false));
    fixture.end();
}

TEST_CASE("raw output appears at once, without waiting for a line end") {
    Fixture fixture;
    Pipe console = make_pipe();
    fixture.options.console_out = console.write.get();
    OutputPipes pipes = fixture.open(0);
    write_all(pipes.out, "\r 50%");
    CHECK(read_bytes(console.read.get(), 5) == "\r 50%");
    fixture.end();
}

TEST_CASE("tee'd streams have torchrun's prefix, redirected ones are in their file only") {
    Fixture fixture;
    OutputChoice choice;
    choice.is_teed_stdout = true;
    choice.shows_stderr = false;
    fixture.options.console[1] = choice;
    fixture.options.role = "trainer";
    OutputPipes raw = fixture.open(0);
    OutputPipes teed = fixture.open(1);
    write_all(raw.err, "plain\n");
    write_all(teed.out, "hello\n");
    write_all(teed.err, "hidden\n");
    fixture.end();
    CHECK(fixture.out() == "[trainer1]:hello\n");
    CHECK(fixture.err() == "plain\n");
    CHECK(fixture.log(1, "stderr.log") == "hidden\n");
}

TEST_CASE("a full log is set aside between two lines, and no byte of it is lost") {
    Fixture fixture;
    fixture.options.rotation = {.file_bytes_max = 1000};
    OutputPipes pipes = fixture.open(0);
    std::string all;
    for (int i = 0; i < 3000; ++i) {
        all += "line " + std::to_string(i) + "\n";
    }
    write_all(pipes.out, all);
    const std::string long_line(2500, 'x');
    write_all(pipes.out, long_line);
    fixture.end();
    std::string found;
    int number = 1;
    for (;; ++number) {
        const std::string name = "stdout.log." + std::to_string(number);
        if (!std::filesystem::exists(fixture.log_dir(0) + "/" + name)) {
            break;
        }
        const std::string part = fixture.log(0, name);
        CHECK(part.size() <= 1000);
        CHECK((part.back() == '\n' || part.back() == 'x'));
        found += part;
    }
    CHECK(number > 30);
    found += fixture.log(0, "stdout.log");
    CHECK((found == all + long_line));
    CHECK(fixture.log(0, "stderr.log").empty());
}

TEST_CASE("of the full logs the newest stay, also where an earlier process had set some aside") {
    Fixture fixture;
    fixture.options.rotation = {.file_bytes_max = 10, .kept_max = 2};
    std::filesystem::create_directories(fixture.log_dir(0));
    for (const char* name : {"/stdout.log.6", "/stdout.log.7", "/stdout.log.old", "/stdout.log"}) {
        std::ofstream(fixture.log_dir(0) + name) << "before\n";
    }
    OutputPipes pipes = fixture.open(0);
    write_all(pipes.out, "first\nsecond\nthird\n");
    fixture.end();
    for (const char* name : {"/stdout.log.6", "/stdout.log.7", "/stdout.log.8"}) {
        CHECK_FALSE(std::filesystem::exists(fixture.log_dir(0) + name));
    }
    CHECK(fixture.log(0, "stdout.log.9") == "first\n");
    CHECK(fixture.log(0, "stdout.log.10") == "second\n");
    CHECK(fixture.log(0, "stdout.log") == "third\n");
    CHECK(fixture.log(0, "stdout.log.old") == "before\n");
}

TEST_CASE("a log that could not begin anew does so as soon as it can") {
    const TempDir dir;
    const std::string path = dir / "log";
    Result<LogFile> log = LogFile::open(path, {.file_bytes_max = 10});
    REQUIRE(log.has_value());
    CHECK(log->append("first one\n").has_value());
    {
        const NoMoreFiles none;
        CHECK(log->append("second\n").has_error());
        CHECK(log->append("third\n").has_error());
    }
    CHECK(log->append("fourth\n").has_value());
    CHECK(log->append("fifth\n").has_value());
    CHECK(read_file(path + ".1") == "first one\nsecond\nthird\n");
    CHECK(read_file(path + ".2") == "fourth\n");
    CHECK(read_file(path) == "fifth\n");
}

TEST_CASE("a log that somebody has removed begins anew when it is full") {
    const TempDir dir;
    const std::string path = dir / "log";
    Result<LogFile> log = LogFile::open(path, {.file_bytes_max = 10});
    REQUIRE(log.has_value());
    CHECK(log->append("first one\n").has_value());
    REQUIRE(::unlink(path.c_str()) == 0);
    CHECK(log->append("second\n").has_value());
    CHECK(read_file(path) == "second\n");
}

TEST_CASE("as JSON every console line is an object, and the log is as it was written") {
    Fixture fixture;
    fixture.options.is_json = true;
    fixture.options.prefixes = true;
    OutputPipes pipes = fixture.open(3);
    write_all(pipes.out, "a \"quoted\" line\nno end");
    write_all(pipes.err, "\xff\n");
    static_cast<void>(fixture.collect(3));
    fixture.output().say("ddprun: two\nlines");
    fixture.end();
    const auto without_time = [](const std::string& text) {
        std::vector<nlohmann::json> lines;
        std::istringstream stream(text);
        for (std::string line; std::getline(stream, line);) {
            lines.push_back(nlohmann::json::parse(line));
            CHECK(lines.back()["time"].get<std::string>().size() == 24);
            lines.back().erase("time");
        }
        return lines;
    };
    const auto of_worker = [](const char* stream, const char* message) {
        return nlohmann::json{{"host", "host"},  {"stream", stream}, {"rank", 3},
                              {"local_rank", 3}, {"generation", 1},  {"message", message}};
    };
    CHECK(without_time(fixture.out()) ==
          std::vector{of_worker("stdout", "a \"quoted\" line"), of_worker("stdout", "no end")});
    CHECK(without_time(fixture.err()) ==
          std::vector{
              of_worker("stderr", "\xef\xbf\xbd"),
              nlohmann::json{{"host", "host"}, {"stream", "ddprun"}, {"message", "two\nlines"}}});
    CHECK(fixture.log(3, "stdout.log") == "a \"quoted\" line\nno end");
    CHECK(fixture.log(3, "stderr.log") == "\xff\n");
}

TEST_CASE("a console that went away costs nothing but the console") {
    Fixture fixture;
    fixture.options.prefixes = true;
    Pipe console = make_pipe();
    fixture.options.console_out = console.write.get();
    console.read.reset();
    OutputPipes pipes = fixture.open(0);
    write_all(pipes.out, "first\n");
    static_cast<void>(fixture.collect(0));
    write_all(pipes.out, "second\n");
    write_all(pipes.err, "third\n");
    fixture.end();
    CHECK(fixture.log(0, "stdout.log") == "first\nsecond\n");
    CHECK(fixture.err() == "[host 0] third\n");
}

TEST_CASE("a console that goes away with output waiting for it lets the workers go on") {
    Fixture fixture;
    Pipe console = make_pipe();
    fixture.options.console_out = console.write.get();
    const std::string bytes = random_bytes(8, 2 << 20);
    OutputPipes pipes = fixture.open(0);
    Child child([&] {
        console.read.reset();  // of this process; the test closes its own
        write_all(pipes.out, bytes);
    });
    CHECK(read_bytes(console.read.get(), 1000) == bytes.substr(0, 1000));
    console.read.reset();
    child.wait();
    static_cast<void>(fixture.collect(0));
    fixture.end();
    CHECK((fixture.log(0, "stdout.log") == bytes));
}

TEST_CASE("a stopped console delays workers, but not what is known of a dead one") {
    Fixture fixture;
    Pipe console = make_pipe();
    fixture.options.console_out = console.write.get();
    const std::string bytes = random_bytes(9, 2 << 20);
    OutputPipes loud = fixture.open(0);
    OutputPipes dying = fixture.open(1);
    Child child([&] { write_all(loud.out, bytes); });
    write_all(dying.err, "Traceback\n");
    CHECK(fixture.collect(1).stderr_tail == "Traceback\n");
    CHECK((read_bytes(console.read.get(), bytes.size()) == bytes));
    child.wait();
    fixture.end();
    CHECK((fixture.log(0, "stdout.log") == bytes));
}

TEST_CASE("the flags of the console's open file description stay as they are") {
    Fixture fixture;
    Pipe console = make_pipe();
    fixture.options.console_out = console.write.get();
    OutputPipes pipes = fixture.open(0);
    write_all(pipes.out, std::string(60000, 'x'));
    CHECK(read_bytes(console.read.get(), 60000).size() == 60000);
    CHECK((::fcntl(console.write.get(), F_GETFL) & O_NONBLOCK) == 0);
    CHECK((::fcntl(pipes.out.get(), F_GETFL) & O_NONBLOCK) == 0);
    CHECK((::fcntl(pipes.out.get(), F_GETFD) & FD_CLOEXEC) != 0);
    fixture.end();
}

TEST_CASE("own lines are whole and in order, with a worker's unfinished line before them") {
    Fixture fixture;
    OutputPipes pipes = fixture.open(0);
    write_all(pipes.err, "half");
    static_cast<void>(fixture.collect(0));
    fixture.output().say("ddprun: one");
    fixture.output().say("ddprun: two");
    fixture.end();
    CHECK(fixture.err() == "half\nddprun: one\nddprun: two\n");
}

TEST_CASE("stdout and stderr at the same place keep lines whole between them") {
    Fixture fixture;
    fixture.options.console_err = fixture.options.console_out;
    OutputPipes pipes = fixture.open(0);
    write_all(pipes.out, "half");
    static_cast<void>(fixture.collect(0));
    fixture.output().say("ddprun: one");
    fixture.end();
    CHECK(fixture.out() == "half\nddprun: one\n");
}

TEST_CASE("each generation has its own folder, links follow the newest, nothing is deleted") {
    Fixture fixture;
    const std::string link = fixture.options.log_root + "/by-rank/0";
    OutputPipes first = fixture.open(0);
    fixture.wait_ready();
    CHECK(std::filesystem::is_directory(fixture.log_dir(0)));
    CHECK(::access((fixture.log_dir(0) + "/stderr.log").c_str(), F_OK) == 0);
    write_all(first.out, "one\n");
    fixture.output().close(kFirst);
    OutputPipes second = fixture.open(0, Generation(2));
    write_all(second.out, "two\n");
    static_cast<void>(fixture.collect(0, Generation(2)));
    CHECK(fixture.log(0, "stdout.log") == "one\n");
    CHECK(fixture.log(0, "stdout.log", Generation(2)) == "two\n");
    CHECK(std::filesystem::read_symlink(link) == "../attempt_1/0");
    CHECK(read_file(link + "/stdout.log") == "two\n");
    fixture.end();
}

TEST_CASE("a log file that is there already is appended to") {
    Fixture fixture;
    std::filesystem::create_directories(fixture.log_dir(0));
    write_all(create(fixture.log_dir(0) + "/stdout.log"), "before\n");
    OutputPipes pipes = fixture.open(0);
    write_all(pipes.out, "after\n");
    fixture.end();
    CHECK(fixture.log(0, "stdout.log") == "before\nafter\n");
}

TEST_CASE("logs that cannot be written are said once, and the console goes on") {
    Fixture fixture;
    write_all(create(fixture.dir / "file"), "in the way");
    fixture.options.log_root = fixture.dir / "file";
    OutputPipes a = fixture.open(0);
    OutputPipes b = fixture.open(1);
    write_all(a.out, "shown\n");
    write_all(b.out, "too\n");
    CHECK(fixture.collect(0).is_complete);
    fixture.end();
    CHECK(fixture.out().size() == std::string_view("shown\ntoo\n").size());
    const std::string err = fixture.err();
    CHECK(err.find("ddprun: making the log folder") == 0);
    CHECK(err.find('\n') == err.size() - 1);
}

TEST_CASE("an early failure of the logs does not hide a later one of another reason") {
    Fixture fixture;
    std::filesystem::create_directories(fixture.options.log_root + "/attempt_0");
    write_all(create(fixture.log_dir(0)), "in the way");
    std::filesystem::create_directories(fixture.log_dir(0, Generation(2)) + "/stdout.log");
    std::filesystem::create_directories(fixture.log_dir(1, Generation(2)) + "/stdout.log");
    (void)fixture.open(0);
    (void)fixture.open(0, Generation(2));
    (void)fixture.open(1, Generation(2));
    fixture.wait_ready();
    fixture.end();
    const std::string err = fixture.err();
    CAPTURE(err);
    CHECK(err.find("ddprun: making the log folder") == 0);
    CHECK(err.find("\nddprun: opening the log file") != std::string::npos);
    CHECK(std::count(err.begin(), err.end(), '\n') == 2);
}

TEST_CASE("a log that could not be opened is as soon as it can, with its link") {
    Fixture fixture;
    std::filesystem::create_directories(fixture.log_dir(0) + "/stdout.log");
    OutputPipes pipes = fixture.open(0);
    write_all(pipes.out, "lost\n");
    CHECK(fixture.collect(0).stdout_tail == "lost\n");
    std::filesystem::remove(fixture.log_dir(0) + "/stdout.log");
    write_all(pipes.out, "kept\n");
    CHECK(fixture.collect(0).is_complete);
    fixture.end();
    CHECK(fixture.log(0, "stdout.log") == "kept\n");
    CHECK(read_file(fixture.options.log_root + "/by-rank/0/stdout.log") == "kept\n");
}

TEST_CASE("events that could not be written are as soon as they can, each on a line of its own") {
    const TempDir dir;
    const std::string path = dir / "run/events.jsonl";
    EventFile events(dir / "run", {});
    CHECK(events.add("before").has_value());
    CHECK(events.begin().has_error());  // there is no folder
    CHECK(events.add("meanwhile").has_error());
    std::filesystem::create_directory(dir / "run");
    CHECK(events.add("after").has_value());
    CHECK(read_file(path) == "before\nmeanwhile\nafter\n");
    {
        const NoMoreBytes full(25);
        CHECK(events.add("cut").has_error());
        CHECK(events.add("late").has_error());
    }
    CHECK(events.add("last").has_value());
    CHECK(read_file(path) == "before\nmeanwhile\nafter\ncu\ncut\nlate\nlast\n");
}

TEST_CASE("a failure of the logs that lasts is said again at intervals, with how many there were") {
    LogErrors errors({.log_error_every = Milliseconds(1000), .log_error_reasons_max = 2});
    const auto line = [&](int ms, const std::string& what) {
        return errors
            .take(Instant(Milliseconds(ms)), Error{.code = ErrorCode::System, .what = what})
            .value_or("");
    };
    const std::string end =
        "; the job goes on without what cannot be written; free space, or choose another --log-dir";
    CHECK(line(1, "writing a: No space left on device") ==
          "ddprun: writing a: No space left on device" + end);
    CHECK(line(2, "writing b: No space left on device").empty());
    CHECK(line(3, "opening c: Is a directory") == "ddprun: opening c: Is a directory" + end);
    CHECK(line(1000, "writing a: No space left on device").empty());
    CHECK(line(1001, "writing d: No space left on device") ==
          "ddprun: writing d: No space left on device (2 more failures since this was said)" + end);
    CHECK(errors
              .take(Instant(Milliseconds(1001)),
                    Error{ErrorCode::LimitExceeded, "it grows on: No space left on device"})
              .value_or("") == "ddprun: it grows on: No space left on device");
    // More reasons than are remembered are all said.
    CHECK_FALSE(line(1002, "opening c: Permission denied").empty());
}

TEST_CASE("lines that could not be written to a log are counted for its rank") {
    Fixture fixture;
    OutputPipes well = fixture.open(0);
    OutputPipes full = fixture.open(3);
    write_all(well.out, "fits\n");
    static_cast<void>(fixture.collect(0));
    CHECK(fixture.output().lost().empty());
    {
        const NoMoreBytes limit(20);
        write_all(full.out, "0123456789\n0123456789\n0123456789\n");
        static_cast<void>(fixture.collect(3));
        write_all(full.err, "01234567890123456789 and no end");
        static_cast<void>(fixture.collect(3));
    }
    CHECK(fixture.log(3, "stdout.log") == "0123456789\n012345678");
    const std::vector<LostLog> lost = fixture.output().lost();
    REQUIRE(lost.size() == 1);
    CHECK(lost.front() == LostLog{.rank = 3, .lines = 2, .why = "File too large"});
    fixture.output().end_run(1, "over", {});
    fixture.end();
    const auto note = ddprun::agent::read_run_note(fixture.options.log_root);
    REQUIRE(note.has_value());
    CHECK(note->lost == lost);
}

TEST_CASE("a log that cannot be made loses all lines, and less than a line counts as one") {
    Fixture fixture;
    std::ofstream(fixture.dir / "logs") << "a file, and no folder";
    OutputPipes pipes = fixture.open(1);
    write_all(pipes.out, "no end");
    static_cast<void>(fixture.collect(1));
    REQUIRE(fixture.output().lost().size() == 1);
    CHECK(fixture.output().lost().front().lines == 1);
    CHECK(fixture.output().lost().front().why == "Not a directory");
}

TEST_CASE("what logs have lost is told in a line, of many ranks by the worst one") {
    CHECK(lost_text(std::vector<LostLog>()).empty());
    const LostLog few{.rank = 1, .lines = 1, .why = "Input/output error"};
    const LostLog many{.rank = 3, .lines = 1234567, .why = "No space left on device"};
    CHECK(lost_text(few) == "rank 1: 1 line of its log was lost: Input/output error");
    CHECK(lost_text({few, many}) ==
          "rank 3: 1,234,567 lines of its log were lost: No space left on device; 1 other rank "
          "lost some, too");
    LostLines lines;
    for (int rank = 0; rank < 2000; ++rank) {
        lines.add(Rank(rank), "a\n", {ErrorCode::System, "writing: no"});
    }
    CHECK(lines.told().size() == ddprun::LogLimits().lost_ranks_max);
}

TEST_CASE("without a log folder there are no files") {
    Fixture fixture;
    auto pipes = fixture.output().open(kFirst, LocalRank(0), Rank(0), 1, "");
    REQUIRE(pipes.has_value());
    write_all(pipes->out, "shown\n");
    CHECK(fixture.collect(0).error_file.empty());
    fixture.end();
    CHECK(fixture.out() == "shown\n");
    CHECK_FALSE(std::filesystem::exists(fixture.options.log_root));
}

TEST_CASE("the end of a stream is never awaited, nor a descendant that goes on writing") {
    Fixture fixture;
    OutputPipes pipes = fixture.open(0);
    write_all(pipes.err, "last words\n");
    Child flood([&] {
        for (;;) {
            write_all(pipes.out, std::string(5000, 'y'));
        }
    });
    CHECK(fixture.collect(0).stderr_tail == "last words\n");
    fixture.output().close(kFirst);
    fixture.end();
    CHECK(fixture.log(0, "stderr.log") == "last words\n");
}

TEST_CASE("the error file is given, bounded; what is no file is not opened") {
    Fixture fixture;
    fixture.options.limits.error_file_bytes_max = 10;
    OutputPipes a = fixture.open(0);
    OutputPipes b = fixture.open(1);
    fixture.wait_ready();
    write_all(create(fixture.log_dir(0) + "/error.json"), "0123456789abc");
    REQUIRE(::mkfifo((fixture.log_dir(1) + "/error.json").c_str(), 0600) == 0);
    CHECK(fixture.collect(0).error_file == "0123456789");
    CHECK(fixture.collect(1).error_file.empty());
    fixture.end();
}

TEST_CASE("a worker that was never opened has no last words") {
    Fixture fixture;
    const Collected collected = fixture.collect(7);
    CHECK(collected.stderr_tail.empty());
    CHECK(collected.is_complete);
}

TEST_CASE("a disk that hangs costs the last words, not the report of the death") {
    // A FIFO without a reader in place of the log file holds up a thread that opens it to write.
    Fixture fixture;
    fixture.options.limits.evidence_timeout = ddprun::Milliseconds(1);
    std::filesystem::create_directories(fixture.log_dir(0));
    const std::string fifo = fixture.log_dir(0) + "/stdout.log";
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    OutputPipes pipes = fixture.open(0);
    write_all(pipes.err, "lost\n");
    CHECK_FALSE(fixture.collect(0).is_complete);
    const UniqueFd release(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    REQUIRE(release.is_open());
    fixture.end();
    CHECK(fixture.log(0, "stderr.log") == "lost\n");
}

TEST_CASE("who ends while the log disk hangs is told what is waited for") {
    Fixture fixture;
    fixture.options.limits.evidence_timeout = ddprun::Milliseconds(1);
    std::filesystem::create_directories(fixture.log_dir(0));
    const std::string fifo = fixture.log_dir(0) + "/stdout.log";
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    OutputPipes pipes = fixture.open(0);
    write_all(pipes.err, "rest\n");
    std::thread ending([&] { fixture.end(); });
    const std::string line =
        "ddprun: the disk of the logs does not answer; ddprun waits until the rest of them is "
        "written to " +
        fixture.options.log_root + " (Ctrl-C or SIGTERM ends it now, without the rest)\n";
    const auto give_up = std::chrono::steady_clock::now() + ddprun::test::kDeadline;
    while (fixture.err() != line && std::chrono::steady_clock::now() < give_up) {
        std::this_thread::yield();
    }
    const std::string told = fixture.err();
    const UniqueFd release(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    ending.join();
    CHECK(told == line);
    CHECK(fixture.log(0, "stderr.log") == "rest\n");
}

TEST_CASE("what is asked again and again of a disk that hangs is done once, when it answers") {
    Fixture fixture;
    fixture.options.limits.slots_max = 2;
    std::filesystem::create_directories(fixture.log_dir(0));
    const std::string fifo = fixture.log_dir(0) + "/stdout.log";
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    (void)fixture.open(0);
    std::atomic<int> looks = 0;
    int windows = 0;
    for (int i = 0; i < 100; ++i) {
        fixture.output().measure([&](const auto& /*measure*/) { ++looks; });
        fixture.output().follow_window([&] { ++windows; });
        fixture.output().show_live("line");
    }
    (void)fixture.open(1);
    const auto beyond = fixture.output().open(kFirst, LocalRank(2), Rank(2), 4, fixture.log_dir(2));
    CHECK((beyond ? "" : beyond.error().what) ==
          "the log disk does not answer: the logs of 2 workers wait to be opened");
    const UniqueFd release(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    REQUIRE(release.is_open());
    fixture.wait_ready();
    CHECK(looks == 1);
    CHECK(windows == 1);
    fixture.output().measure([&](const auto& /*measure*/) { ++looks; });
    (void)fixture.open(3);
    fixture.wait_ready();
    CHECK(looks == 2);
}

// A pseudo-terminal's last bytes are still in a queue of the kernel when its writer is gone. Each
// child writes a random number of bytes, up to more than the kernel holds, and ends at once, half
// of them by SIGKILL.
TEST_CASE("nothing is lost of what workers write to pseudo-terminals before they end") {
    const char* wanted = std::getenv("DDPRUN_TERMINAL_EXITS");
    const int exits = wanted == nullptr ? 300 : std::atoi(wanted);
    const std::string bytes = random_bytes(12, 20000);
    Rng rng(13);
    Terminal terminal;
    Fixture fixture;
    fixture.options.console_out = terminal.slave.get();
    fixture.options.console_err = terminal.slave.get();
    for (int i = 0; i < exits; ++i) {
        const Generation generation(static_cast<std::uint64_t>(i) + 1);
        const std::size_t size = 1 + rng.below(bytes.size());
        const bool is_killed = rng.chance(1, 2);
        OutputPipes pipes = fixture.open(0, generation);
        REQUIRE(::isatty(pipes.out.get()) == 1);
        Child child([&] {
            write_all(pipes.out, std::string_view(bytes).substr(0, size));
            if (is_killed) {
                ::kill(::getpid(), SIGKILL);
            }
        });
        pipes = {};
        child.wait();
        static_cast<void>(fixture.collect(0, generation));
        REQUIRE((fixture.log(0, "stdout.log", generation) == bytes.substr(0, size)));
        fixture.output().close(generation);
    }
}

TEST_CASE("a descendant that goes on writing to a pseudo-terminal holds nobody up") {
    Terminal terminal;
    Fixture fixture;
    fixture.options.console_out = terminal.slave.get();
    OutputPipes pipes = fixture.open(0);
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    const UniqueFd begun(ends[0]);
    const UniqueFd begin(ends[1]);
    Child child([&] {
        write_all(pipes.out, "on and on\n");
        write_all(begin, "x");
        for (;;) {
            write_all(pipes.out, "on and on\n");
        }
    });
    char first = 0;
    REQUIRE(::read(begun.get(), &first, 1) == 1);
    static_cast<void>(fixture.collect(0));
    fixture.output().close(kFirst);
    fixture.end();
    CHECK(fixture.log(0, "stdout.log").starts_with("on and on\n"));
}

TEST_CASE("a filter of ranks keeps others from the console, not from their logs") {
    Fixture fixture;
    fixture.options.prefixes = true;
    fixture.options.ranks_filter = {.ranks = {0}, .has_last = true};
    fixture.options.console[3] = {.shows_stdout = false, .shows_stderr = true};
    for (int rank = 0; rank < 4; ++rank) {
        OutputPipes pipes = fixture.open(rank);
        write_all(pipes.out, "out\n");
        write_all(pipes.err, "err\n");
        pipes = {};
        static_cast<void>(fixture.collect(rank));
        CHECK(fixture.log(rank, "stdout.log") == "out\n");
        CHECK(fixture.log(rank, "stderr.log") == "err\n");
    }
    fixture.end();
    CHECK(fixture.out() == "[host 0] out\n");
    CHECK(fixture.err() == "[host 0] err\n[host 3] err\n");
}

TEST_CASE("where there is no pseudo-terminal workers get pipes, and one line says so") {
    Terminal terminal;
    Fixture fixture;
    fixture.options.console_out = terminal.slave.get();
    fixture.options.terminal_maker = fixture.dir / "ptmx";
    OutputPipes first = fixture.open(0);
    OutputPipes second = fixture.open(1);
    CHECK(::isatty(first.out.get()) == 0);
    write_all(second.out, "two\n");
    second = {};
    static_cast<void>(fixture.collect(1));
    fixture.end();
    CHECK(fixture.log(1, "stdout.log") == "two\n");
    const std::string said = fixture.err();
    CHECK(said.starts_with("ddprun: no pseudo-terminal for the workers (opening "));
    CHECK(std::count(said.begin(), said.end(), '\n') == 1);
}
