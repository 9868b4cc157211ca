// Goal: the secret file is found by its precedence, made once however many ask for it, and refused
// when others may read it.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "rendezvous/transport/secret_file.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/result_text.hpp"

namespace ddprun::rdzv {
namespace {

// A home of its own; the environment is put back.
class Home {
public:
    Home() {
        std::string pattern = "secret_file_home.XXXXXX";
        REQUIRE(::mkdtemp(pattern.data()) != nullptr);
        path_ = std::filesystem::absolute(pattern);
        ::setenv("HOME", path_.c_str(), 1);
        ::unsetenv("XDG_CONFIG_HOME");
        ::unsetenv("DDPRUN_SECRET_FILE");
    }
    ~Home() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    Home(const Home&) = delete;
    Home& operator=(const Home&) = delete;

    [[nodiscard]] std::string write(const std::string& name, const std::string& text,
                                    mode_t mode) const {
        const std::string file = path_ / name;
        std::ofstream(file) << text;
        REQUIRE(::chmod(file.c_str(), mode) == 0);
        return file;
    }
    [[nodiscard]] std::string default_file() const { return path_ / ".config/ddprun/secret"; }
    [[nodiscard]] const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
};

const std::string kHex(64, 'a');

bool are_equal(const JobSecret& left, const JobSecret& right) {
    return std::ranges::equal(left.reveal(), right.reveal());
}

TEST_CASE("the default secret is made private on first use and read afterwards") {
    const Home home;
    const Result<JobSecret> made = load_or_create_secret("");
    INFO((made ? "" : made.error().what));
    REQUIRE(made);
    REQUIRE(made->origin() == home.default_file());
    struct stat status {};
    REQUIRE(::stat(home.default_file().c_str(), &status) == 0);
    REQUIRE((status.st_mode & 07777) == 0600);
    REQUIRE(::stat((home.path() / ".config/ddprun").c_str(), &status) == 0);
    REQUIRE((status.st_mode & 07777) == 0700);
    const Result<JobSecret> read = load_or_create_secret("");
    REQUIRE(read);
    REQUIRE(are_equal(*made, *read));
    // The temporary file is gone.
    const std::filesystem::directory_iterator folder(home.path() / ".config/ddprun");
    REQUIRE(std::distance(begin(folder), end(folder)) == 1);
}

TEST_CASE("a given file comes before the variable, and the variable before the default") {
    const Home home;
    const std::string given = home.write("given", kHex + "\n", 0600);
    const std::string named = home.write("named", kHex, 0400);
    REQUIRE(load_or_create_secret(given)->origin() == given);
    ::setenv("DDPRUN_SECRET_FILE", named.c_str(), 1);
    REQUIRE(load_or_create_secret("")->origin() == named);
    REQUIRE(load_or_create_secret(given)->origin() == given);
    ::unsetenv("DDPRUN_SECRET_FILE");
    ::setenv("XDG_CONFIG_HOME", "/elsewhere", 1);
    REQUIRE(secret_file_path("") == "/elsewhere/ddprun/secret");
    ::unsetenv("XDG_CONFIG_HOME");
    ::unsetenv("HOME");
    REQUIRE(load_or_create_secret("").error().what ==
            "no job secret: HOME is not set; name a file with --secret-file");
}

TEST_CASE("a secret file that cannot be used is refused in one line") {
    const Home home;
    SECTION("others may read it") {
        const std::string file = home.write("open", kHex, 0640);
        const Result<JobSecret> secret = load_or_create_secret(file);
        REQUIRE(secret.error().code == ErrorCode::PermissionDenied);
        REQUIRE(secret.error().what == "secret file " + file +
                                           " is open to other users (mode 0640); run: chmod 600 " +
                                           file);
    }
    SECTION("a named file that is not there is not made") {
        const std::string file = home.path() / "missing";
        REQUIRE(load_or_create_secret(file).error().code == ErrorCode::NotFound);
        REQUIRE_FALSE(std::filesystem::exists(file));
    }
    SECTION("it holds something else, which is not repeated in the text") {
        for (const std::string& text :
             {std::string(), std::string("swordfish"), kHex + "a", std::string(64, 'g')}) {
            const std::string file = home.write("bad", text, 0600);
            const Result<JobSecret> secret = load_or_create_secret(file);
            REQUIRE(secret.error().code == ErrorCode::BadSecret);
            REQUIRE(secret.error().what.find("swordfish") == std::string::npos);
            REQUIRE(secret.error().what.find('\n') == std::string::npos);
        }
    }
}

TEST_CASE("a job's own secret is made where it is asked for, and refused when others may read it") {
    const Home home;
    const std::string file = home.path() / ".ddprun-secret-42.0";
    const Result<JobSecret> made = load_or_create_secret_at(file);
    REQUIRE(made);
    struct stat status {};
    REQUIRE(::stat(file.c_str(), &status) == 0);
    REQUIRE((status.st_mode & 07777) == 0600);
    REQUIRE(are_equal(*made, *load_or_create_secret_at(file)));
    REQUIRE(::chmod(file.c_str(), 0644) == 0);
    REQUIRE(load_or_create_secret_at(file).error().code == ErrorCode::PermissionDenied);
    REQUIRE(::chmod(file.c_str(), 0600) == 0);
    if (::geteuid() == 0) {
        REQUIRE(::chown(file.c_str(), 12345, 12345) == 0);
        const Result<JobSecret> others = load_or_create_secret_at(file);
        REQUIRE(others.error().code == ErrorCode::PermissionDenied);
        REQUIRE(others.error().what == "secret file " + file +
                                           " belongs to user 12345, not to you (user 0); name "
                                           "your own with --secret-file");
    }
    // No process makes a secret in a folder that no user may write.
    REQUIRE_FALSE(load_or_create_secret_at("/proc/.ddprun-secret-42.0"));
}

TEST_CASE("of many processes that make the default secret at once all get the same") {
    const Home home;
    int pipe_fds[2];
    REQUIRE(::pipe2(pipe_fds, O_CLOEXEC) == 0);
    constexpr int kProcesses = 16;
    for (int i = 0; i < kProcesses; ++i) {
        const pid_t pid = ::fork();
        REQUIRE(pid >= 0);
        if (pid == 0) {
            const Result<JobSecret> secret = load_or_create_secret("");
            const bool is_said =
                secret && ::write(pipe_fds[1], secret->reveal().data(), JobSecret::kBytes) ==
                              static_cast<ssize_t>(JobSecret::kBytes);
            ::_exit(is_said ? 0 : 1);
        }
    }
    ::close(pipe_fds[1]);
    for (int i = 0; i < kProcesses; ++i) {
        int status = 0;
        REQUIRE(::wait(&status) > 0);
        REQUIRE(status == 0);
    }
    const Result<JobSecret> secret = load_or_create_secret("");
    REQUIRE(secret);
    for (int i = 0; i < kProcesses; ++i) {
        JobSecret::Bytes bytes{};
        REQUIRE(::read(pipe_fds[0], bytes.data(), bytes.size()) ==
                static_cast<ssize_t>(bytes.size()));
        REQUIRE(are_equal(JobSecret(bytes, ""), *secret));
    }
    ::close(pipe_fds[0]);
}

TEST_CASE("an endpoint is a host and a port") {
    REQUIRE(*parse_endpoint("head:29400") == Endpoint{"head", 29400});
    REQUIRE(*parse_endpoint("[::1]:0") == Endpoint{"::1", 0});
    REQUIRE(to_string(Endpoint{"::1", 5}) == "[::1]:5");
    REQUIRE(to_string(Endpoint{"10.0.0.7", 5}) == "10.0.0.7:5");
    REQUIRE(parse_endpoint("head").error().what ==
            "endpoint 'head': it has no port; write HOST:PORT");
    for (const char* text : {"", ":1", "h:", "h:x", "h:70000", "h:1x", "::1:5", "[]:1", "h:-1",
                             "[[]]:2", "[::1:2", "a]:3"}) {
        INFO(text);
        REQUIRE_FALSE(parse_endpoint(text));
    }
}

}  // namespace
}  // namespace ddprun::rdzv
