// A program of its own as a standby, and the agent's side of it: this test.

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/os/file_identity.hpp"
#include "base/os/read_files.hpp"
#include "base/os/unique_fd.hpp"
#include "tests/support/catch.hpp"

namespace ddprun {
namespace {

using Variables = std::vector<std::string>;

const std::string kProgram = DDPRUN_STANDBY_PROGRAM;
constexpr int kSocket = 3;

/// Both ends, close-on-exec.
std::pair<UniqueFd, UniqueFd> make_pipe() {
    std::array<int, 2> ends{};
    REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::string read_to_end(const UniqueFd& pipe) {
    std::string text;
    std::array<char, 4096> bytes{};
    for (ssize_t got = 0; (got = read(pipe.get(), bytes.data(), bytes.size())) > 0;) {
        text.append(bytes.data(), static_cast<std::size_t>(got));
    }
    return text;
}

std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
    std::vector<char*> pointers;
    for (const std::string& string : strings) {
        pointers.push_back(const_cast<char*>(string.c_str()));
    }
    pointers.push_back(nullptr);
    return pointers;
}

/// One process as the keeper starts it: it leads a session, and has its streams and, where it is a
/// standby, the socket.
class Started {
public:
    explicit Started(Variables variables, bool is_standby = false,
                     const std::string& program = kProgram,
                     std::vector<std::string> more_arguments = {}) {
        std::array<int, 2> ends{};
        REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
        socket = UniqueFd(ends[0]);
        const UniqueFd theirs(ends[1]);
        auto [reads, writes] = make_pipe();
        out = std::move(reads);
        if (is_standby) {
            variables.push_back("DDPRUN_STANDBY=" + std::to_string(kSocket));
        }
        std::vector<std::string> arguments{"program", "a b"};
        arguments.insert(arguments.end(), more_arguments.begin(), more_arguments.end());
        const std::vector<char*> argv = pointers_to(arguments);
        const std::vector<char*> envp = pointers_to(variables);
        pid = fork();
        if (pid == 0) {
            setsid();
            dup2(writes.get(), STDOUT_FILENO);
            // The runner of this test may have left descriptors of its own open.
            close_range(kSocket, ~0U, CLOSE_RANGE_CLOEXEC);
            if (is_standby && dup2(theirs.get(), kSocket) == theirs.get()) {
                fcntl(kSocket, F_SETFD, 0);
            }
            execve(program.c_str(), argv.data(), envp.data());
            _exit(127);
        }
        REQUIRE(pid > 0);
    }
    ~Started() {
        if (pid > 0) {
            kill(pid, SIGKILL);
            waitpid(pid, nullptr, 0);
        }
    }
    Started(const Started&) = delete;
    Started& operator=(const Started&) = delete;

    /// The next message, its fields joined by blanks; empty: it has ended.
    [[nodiscard]] std::string says() const {
        std::string text(std::size_t{1} << 16, '\0');
        const ssize_t got = recv(socket.get(), text.data(), text.size(), 0);
        text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
        std::replace(text.begin(), text.end(), '\0', ' ');
        return text;
    }
    void hear(std::string_view text, int stream = -1) const {
        iovec bytes{const_cast<char*>(text.data()), text.size()};
        msghdr message{};
        message.msg_iov = &bytes;
        message.msg_iovlen = 1;
        alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
        if (stream >= 0) {
            message.msg_control = control.data();
            message.msg_controllen = control.size();
            cmsghdr* const header = CMSG_FIRSTHDR(&message);
            header->cmsg_level = SOL_SOCKET;
            header->cmsg_type = SCM_RIGHTS;
            header->cmsg_len = CMSG_LEN(2 * sizeof(int));
            const std::array<int, 2> both{stream, STDERR_FILENO};
            std::memcpy(CMSG_DATA(header), both.data(), sizeof both);
        }
        REQUIRE(sendmsg(socket.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
    }
    /// Until it waits for its place, or says why not.
    std::string prepare() const {
        REQUIRE(says() == "here");
        hear("placed RANK\nimport program");
        REQUIRE(says() == "imports program");
        return says();
    }
    /// The text of a file of its folder in /proc.
    [[nodiscard]] std::string shown(const char* file) const {
        return read_whole(fmt::format("/proc/{}/{}", pid, file)).value_or("");
    }
    /// Its wait status.
    int end() {
        int status = 0;
        REQUIRE(waitpid(std::exchange(pid, 0), &status, 0) > 0);
        return status;
    }
    int exit_code() {
        const int status = end();
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }

    pid_t pid = 0;
    UniqueFd socket;
    UniqueFd out;
};

class TemporaryFolder {
public:
    TemporaryFolder() : path_(std::filesystem::temp_directory_path() / "ddprun-standby-XXXXXX") {
        REQUIRE(mkdtemp(path_.data()) != nullptr);
    }
    ~TemporaryFolder() { std::filesystem::remove_all(path_); }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    [[nodiscard]] const std::string& path() const { return path_; }

private:
    std::string path_;
};

std::string place_of(const Variables& variables) {
    std::string text = "place";
    for (const std::string& variable : variables) {
        text += '\0' + variable;
    }
    return text;
}

}  // namespace

TEST_CASE("a program that has waited finds what it finds cold") {
    const Variables own{"PATH=/bin", "MORE=1"};
    const Variables told{"LOCAL_RANK=1", "RANK=5"};
    Variables all = own;
    all.insert(all.end(), told.begin(), told.end());
    Started cold(all);
    const std::string expected = read_to_end(cold.out);
    CHECK(cold.exit_code() == 3);
    CHECK(expected.find("rank at start 5\nleads 1\n") != std::string::npos);

    Started standby({"PATH=/bin", "LOCAL_RANK=1", "MORE=1", "RANK=99"}, true);
    CHECK(standby.prepare().starts_with("ready "));
    // Its title says that it waits, until it is the worker; "program" and "a b" have little room.
    CHECK(standby.shown("comm") == "ddprun: standby\n");
    CHECK(standby.shown("cmdline") == std::string("ddprun: sta", 12));
    standby.hear("check");
    auto [reads, writes] = make_pipe();
    standby.hear(place_of(told), writes.get());
    writes.reset();
    CHECK(standby.says() == "gone");
    CHECK(standby.says().empty());
    CHECK(read_to_end(reads) == expected);
    CHECK(read_to_end(standby.out).empty());
    CHECK(standby.exit_code() == 3);
}

TEST_CASE("a standby that waits is called what it is") {
    const std::string title = "ddprun: standby of local rank 3";
    const std::string more(GENERATE(18U, 19U, 100U), 'x');
    Started standby({"LOCAL_RANK=3"}, true, kProgram, {more});
    CHECK(standby.prepare().starts_with("ready "));
    std::string expected = more.size() == 18 ? "ddprun: standby 3" : title;
    expected.resize(std::string("program.a b.").size() + more.size() + 1);
    CHECK(standby.shown("cmdline") == expected);
}

TEST_CASE("a standby whose agent goes ends, and its program has never begun") {
    const bool is_ready = GENERATE(false, true);
    Started standby({}, true);
    if (is_ready) {
        CHECK(standby.prepare().starts_with("ready "));
    }
    standby.socket.reset();
    CHECK(read_to_end(standby.out).empty());
    const int code = standby.exit_code();
    CHECK((code == 0 || code == 1));
}

TEST_CASE("what is no place ends a standby") {
    Started standby({}, true);
    CHECK(standby.prepare().starts_with("ready "));
    SECTION("another word") {
        standby.hear("else");
    }
    SECTION("no streams") {
        standby.hear(place_of({"RANK=1"}));
    }
    SECTION("no variable") {
        standby.hear(place_of({"RANK"}), STDERR_FILENO);
    }
    CHECK(standby.says().empty());
    CHECK(read_to_end(standby.out).empty());
    CHECK(standby.exit_code() == 1);
}

TEST_CASE("a standby whose program was replaced says so") {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/program";
    std::filesystem::copy_file(kProgram, path);
    Started standby({"LD_LIBRARY_PATH=" + std::filesystem::path(kProgram).parent_path().string()},
                    true, path);
    CHECK(standby.prepare().starts_with("ready "));
    std::filesystem::copy_file(kProgram, path + ".new");
    std::filesystem::rename(path + ".new", path);
    standby.hear(GENERATE("check", "place"));
    CHECK(standby.says() == "unfit " + path + " has changed");
    CHECK(read_to_end(standby.out).empty());
    CHECK(standby.exit_code() == 0);
}

TEST_CASE("a standby notices that a link to a library of its program leads elsewhere") {
    const TemporaryFolder folder;
    const std::string name = "libstandby_test_library.so";
    const std::string link = folder.path() + "/" + name;
    for (const char* const version : {"one", "two"}) {
        std::filesystem::copy_file(std::filesystem::path(kProgram).replace_filename(name),
                                   folder.path() + "/" + version);
    }
    std::filesystem::create_symlink("one", link);
    Started standby({"LD_LIBRARY_PATH=" + folder.path()}, true);
    CHECK(standby.prepare().starts_with("ready "));
    std::filesystem::create_symlink("two", link + ".new");
    std::filesystem::rename(link + ".new", link);
    standby.hear("place");
    CHECK(standby.says() == "unfit " + link + " has changed");
    CHECK(standby.exit_code() == 0);
}

TEST_CASE("what must wait for the place is told, and the standby ends") {
    const TemporaryFolder folder;
    const std::string file = folder.path() + "/file";
    const auto [does, told] = GENERATE(table<std::string, std::string>({
        {"thread", "it starts 1 thread"},
        {"socket", "it opens a socket"},
        {"file", "it opens {} for writing"},
    }));
    Started standby({"STANDBY_DOES=" + does, "STANDBY_FILE=" + file}, true);
    CHECK(standby.prepare() == "unfit program " + fmt::format(fmt::runtime(told), file));
    CHECK(read_to_end(standby.out).empty());
    CHECK(standby.exit_code() == 0);
}

TEST_CASE("a cold worker tells that its program waits, and nobody else does") {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/pipe";
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    UniqueFd pipe(open(path.c_str(), O_RDWR | O_CLOEXEC));
    const Variables variables{"RANK=0", "DDPRUN_IMPORTS=" + path};
    const bool has_child = GENERATE(false, true);
    Started cold(variables, false, kProgram,
                 has_child ? std::vector{path} : std::vector<std::string>());
    const std::string seen = read_to_end(cold.out);
    CHECK((seen.find("DDPRUN_IMPORTS") == std::string::npos) != has_child);
    CHECK(cold.exit_code() == 3);
    UniqueFd reads(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    pipe.reset();
    CHECK(read_to_end(reads) == "waits " + file_identity(kProgram) + "\n");
}

}  // namespace ddprun
