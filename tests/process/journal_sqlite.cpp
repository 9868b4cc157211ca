// The journal in a folder: what is reported as written survives any death of the writer, and
// nothing that can lie in the folder keeps a daemon from starting.

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "base/os/unique_fd.hpp"
#include "base/rng.hpp"
#include "rendezvous/journal/sqlite_journal.hpp"
#include "tests/process/journal_fixture.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun;
using namespace ddprun::rdzv;
using namespace ddprun::rdzv::test;
using ddprun::test::TempDir;

namespace {

const JobId kLlama("llama");
const JobId kOther("other");

OpenedJournal open_or_fail(boost::asio::io_context& io, const std::string& folder,
                           const Limits& limits = {}) {
    Result<OpenedJournal> opened = open_sqlite_journal(io, folder, limits);
    REQUIRE(opened);
    return *std::move(opened);
}

// A process that dies in the middle of what it does; what it says comes through a pipe.
class Child {
public:
    template <typename Body>
    explicit Child(const Body& body) {
        int ends[2] = {-1, -1};
        REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
        const pid_t parent = ::getpid();
        pid_ = ::fork();
        REQUIRE(pid_ >= 0);
        if (pid_ == 0) {
            ::close(ends[0]);
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (::getppid() == parent) {
                body(ends[1]);
            }
            ::_exit(0);
        }
        ::close(ends[1]);
        words_.reset(ends[0]);
    }
    ~Child() {
        if (pid_ > 0) {
            ::kill(pid_, SIGKILL);
            wait();
        }
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    [[nodiscard]] std::optional<char> next_word() const {
        char word = 0;
        return ::read(words_.get(), &word, 1) == 1 ? std::optional(word) : std::nullopt;
    }
    [[nodiscard]] std::string all_words() const {
        std::string words;
        while (const std::optional<char> word = next_word()) {
            words += *word;
        }
        return words;
    }
    void kill() {
        ::kill(pid_, SIGKILL);
        wait();
    }
    void wait() {
        int status = 0;
        CHECK(::waitpid(std::exchange(pid_, -1), &status, 0) > 0);
    }

private:
    pid_t pid_ = -1;
    UniqueFd words_;
};

void say(int words, const std::string& text) {
    static_cast<void>(!::write(words, text.data(), text.size()));
}

// A daemon that starts with the journal in `folder` and dies at once.
void start_and_die(const std::string& folder) {
    Child child([&](int words) {
        boost::asio::io_context io;
        const Result<OpenedJournal> opened = open_sqlite_journal(io, folder, Limits{});
        say(words, opened ? "." : "!");
        ::raise(SIGKILL);
    });
    CHECK(child.next_word() == '.');
    child.wait();
}

void write_file(const std::string& path, const std::string& text) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << text;
}

// A journal of two runs, written back from its write-ahead log and closed.
void make_journal(const std::string& folder) {
    boost::asio::io_context io;
    const OpenedJournal opened = open_or_fail(io, folder);
    REQUIRE(write_now(io, *opened.journal, kLlama, std::string(20000, 'l')));
    REQUIRE(write_now(io, *opened.journal, kOther, std::string(20000, 'o')));
}

}  // namespace

TEST_CASE("a record is what was written last, in this life of the daemon and the next") {
    const TempDir dir;
    const std::string folder = dir / "state/of/daemon";
    {
        boost::asio::io_context io;
        const OpenedJournal opened = open_or_fail(io, folder);
        CHECK(opened.records.empty());
        CHECK(opened.note.empty());
        CHECK(write_now(io, *opened.journal, kLlama, "first"));
        CHECK(write_now(io, *opened.journal, kLlama, std::string("se\0cond", 7)));
        CHECK(write_now(io, *opened.journal, kOther, std::string(1 << 20, 'x')));
    }
    boost::asio::io_context io;
    OpenedJournal opened = open_or_fail(io, folder);
    CHECK(opened.note.empty());
    CHECK(opened.records.size() == 2);
    CHECK(opened.records[kLlama] == std::string("se\0cond", 7));
    CHECK(opened.records[kOther] == std::string(1 << 20, 'x'));
    // No other user may read the token of a run.
    struct stat status {};
    CHECK(::stat(folder.c_str(), &status) == 0);
    CHECK((status.st_mode & 07777U) == 0700);
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        CHECK(::stat(entry.path().c_str(), &status) == 0);
        CHECK((status.st_mode & 07777U) == 0600);
    }
}

TEST_CASE("an erased record is gone after the next start, also if nothing else was written") {
    const TempDir dir;
    make_journal(dir.path());
    {
        boost::asio::io_context io;
        const OpenedJournal opened = open_or_fail(io, dir.path());
        opened.journal->erase(kLlama);
    }
    boost::asio::io_context io;
    const OpenedJournal opened = open_or_fail(io, dir.path());
    CHECK(opened.records.size() == 1);
    CHECK(opened.records.count(kOther) == 1);
}

TEST_CASE("writes that wait for the disk are superseded, and all are answered") {
    const TempDir dir;
    boost::asio::io_context io;
    OpenedJournal opened = open_or_fail(io, dir.path());
    constexpr int kWrites = 500;
    int answers = 0;
    for (int number = 0; number < kWrites; ++number) {
        opened.journal->write(kLlama, std::to_string(number), [&](const Result<void>& done) {
            CHECK(done);
            ++answers;
        });
    }
    CHECK(answers == 0);
    // The loop does not run out of work before.
    io.run();
    CHECK(answers == kWrites);
    opened.journal.reset();
    opened = open_or_fail(io, dir.path());
    CHECK(opened.records[kLlama] == std::to_string(kWrites - 1));
}

TEST_CASE("a journal that is closed has written what it was given, and calls nobody back") {
    const TempDir dir;
    boost::asio::io_context io;
    OpenedJournal opened = open_or_fail(io, dir.path());
    bool is_answered = false;
    opened.journal->write(kLlama, "last", [&](const Result<void>&) { is_answered = true; });
    opened.journal.reset();
    io.restart();  // it has run out of work by now
    io.run();
    CHECK_FALSE(is_answered);
    opened = open_or_fail(io, dir.path());
    CHECK(opened.records[kLlama] == "last");
}

TEST_CASE("a record that was said to be written outlives SIGKILL of the writer at any moment") {
    const TempDir dir;
    Rng rng(7);
    char last = 'a';
    for (int life = 0; life < 12; ++life) {
        // It writes letter after letter and says each one that is on the disk.
        Child child([&](int words) {
            boost::asio::io_context io;
            const Result<OpenedJournal> opened = open_sqlite_journal(io, dir.path(), Limits{});
            for (char letter = last; opened; letter = letter == 'z' ? 'a' : char(letter + 1)) {
                if (!write_now(io, *opened->journal, kLlama, std::string(5000, letter))) {
                    say(words, "!");
                }
                say(words, std::string(1, letter));
            }
        });
        std::optional<char> said;
        const std::uint64_t count = 1 + rng.below(40);
        for (std::uint64_t number = 0; number < count; ++number) {
            said = child.next_word();
            REQUIRE(said.has_value());
        }
        child.kill();
        for (const char word : child.all_words()) {
            said = word;
        }
        REQUIRE(said != '!');
        boost::asio::io_context io;
        OpenedJournal opened = open_or_fail(io, dir.path());
        CHECK(opened.note.empty());
        const std::string record = opened.records[kLlama];
        REQUIRE(record.size() == 5000);
        CHECK(record == std::string(5000, record[0]));
        // The next one may have been written and its word not said.
        const char after = *said == 'z' ? 'a' : char(*said + 1);
        CHECK((record[0] == *said || record[0] == after));
        last = record[0];
    }
}

TEST_CASE("a damaged journal is set aside, said, and a new one is begun") {
    const TempDir dir;
    make_journal(dir.path());
    const std::string path = dir / "journal.db";
    const auto size = static_cast<std::uint64_t>(std::filesystem::file_size(path));
    std::string damage;
    SECTION("cut off in the middle") {
        std::filesystem::resize_file(path, size / 2);
        damage = "is damaged";
    }
    SECTION("cut off within its header") {
        std::filesystem::resize_file(path, 50);
        damage = "of another program or version";
    }
    SECTION("cut off not on a page") {
        std::filesystem::resize_file(path, size - 1000);
        damage = "is damaged";
    }
    SECTION("empty") {
        std::filesystem::resize_file(path, 0);
        damage = "is empty";
    }
    SECTION("something else altogether") {
        write_file(path, std::string(10000, 'j'));
        damage = "is damaged";
    }
    SECTION("one byte of a record flipped, where SQLite has no checksum") {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(static_cast<std::streamoff>(size - 2000));
        file.put('?');
        file.close();
        damage = "the checksum of run";
    }
    SECTION("one letter of a name flipped, in the index only") {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        const std::string text{std::istreambuf_iterator<char>(file),
                               std::istreambuf_iterator<char>()};
        const std::size_t in_table = text.find("llamal");  // followed by its record
        const std::size_t in_index = text.find("llama", in_table < 8192 ? 8192 : 4096);
        REQUIRE(in_table != std::string::npos);
        REQUIRE(in_index != std::string::npos);
        REQUIRE(in_index != in_table);
        file.seekp(static_cast<std::streamoff>(in_index));
        file.put('L');
        file.close();
        damage = "is damaged";
    }
    SECTION("the database of another program") {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(68);  // SQLite's header keeps the application id there
        file.put('\x01');
        file.close();
        damage = "of another program or version";
    }
    boost::asio::io_context io;
    OpenedJournal opened = open_or_fail(io, dir.path());
    CHECK(opened.records.empty());
    CHECK_THAT(opened.note, Catch::Contains(damage));
    CHECK_THAT(opened.note, Catch::Contains(path + ".set-aside-1"));
    CHECK(std::filesystem::exists(path + ".set-aside-1"));
    // And it works.
    CHECK(write_now(io, *opened.journal, kLlama, "new"));
    opened.journal.reset();
    opened = open_or_fail(io, dir.path());
    CHECK(opened.note.empty());
    CHECK(opened.records[kLlama] == "new");
}

TEST_CASE("no flipped byte makes a daemon read a wrong record or keeps it from starting") {
    const TempDir dir;
    make_journal(dir.path());
    const std::string path = dir / "journal.db";
    std::ifstream file(path, std::ios::binary);
    const std::string good{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    REQUIRE(good.size() > 40000);
    Rng rng(11);
    int set_aside = 0;
    for (int number = 0; number < 300; ++number) {
        std::string bad = good;
        const std::size_t at =
            static_cast<std::size_t>(rng.below(number < 100 ? 4096 : good.size()));
        bad[at] = static_cast<char>(bad[at] ^ static_cast<char>(1 + rng.below(255)));
        for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
            std::filesystem::remove(entry.path());
        }
        write_file(path, bad);
        boost::asio::io_context io;
        OpenedJournal opened = open_or_fail(io, dir.path());
        if (opened.note.empty()) {
            // The byte was one that does not matter.
            INFO("byte " << at);
            CHECK(opened.records[kLlama] == std::string(20000, 'l'));
            CHECK(opened.records[kOther] == std::string(20000, 'o'));
        } else {
            ++set_aside;
            CHECK(opened.records.empty());
        }
        CHECK(write_now(io, *opened.journal, JobId("third"), "works"));
    }
    CHECK(set_aside > 100);
}

TEST_CASE("a damaged write-ahead log costs the writes in it at most") {
    const TempDir dir;
    Rng rng(13);
    for (int number = 0; number < 20; ++number) {
        for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
            std::filesystem::remove(entry.path());
        }
        make_journal(dir.path());
        Child child([&](int words) {
            boost::asio::io_context io;
            const Result<OpenedJournal> opened = open_sqlite_journal(io, dir.path(), Limits{});
            bool is_written = opened.has_value();
            for (const char letter : {'m', 'n'}) {
                is_written = is_written &&
                             write_now(io, *opened->journal, kLlama, std::string(20000, letter));
            }
            say(words, is_written ? "." : "!");
            ::raise(SIGKILL);
        });
        REQUIRE(child.next_word() == '.');
        child.wait();
        const std::string log = dir / "journal.db-wal";
        const auto size = static_cast<std::uint64_t>(std::filesystem::file_size(log));
        std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(static_cast<std::streamoff>(rng.below(size)));
        file.put('?');
        file.close();
        boost::asio::io_context io;
        OpenedJournal opened = open_or_fail(io, dir.path());
        const std::string record = opened.records[kLlama];
        CHECK(opened.note.empty());
        REQUIRE(record.size() == 20000);
        CHECK(record == std::string(20000, record[0]));
        CHECK(opened.records[kOther] == std::string(20000, 'o'));
    }
}

TEST_CASE("a journal on which the daemon died three times in a row is set aside") {
    const TempDir dir;
    make_journal(dir.path());
    SECTION("three deaths while starting") {
        for (int death = 0; death < 3; ++death) {
            start_and_die(dir.path());
        }
        boost::asio::io_context io;
        const OpenedJournal opened = open_or_fail(io, dir.path());
        CHECK(opened.records.empty());
        CHECK_THAT(opened.note, Catch::Contains("died 3 times in a row"));
        CHECK_THAT(opened.note, Catch::Contains(dir / "journal.db.set-aside-1"));
    }
    SECTION("two deaths, a start that goes well, two deaths") {
        start_and_die(dir.path());
        start_and_die(dir.path());
        {
            boost::asio::io_context io;
            CHECK(open_or_fail(io, dir.path()).records.size() == 2);
        }
        start_and_die(dir.path());
        start_and_die(dir.path());
        boost::asio::io_context io;
        const OpenedJournal opened = open_or_fail(io, dir.path());
        CHECK(opened.records.size() == 2);
        CHECK(opened.note.empty());
    }
    SECTION("deaths after a record was written") {
        for (int death = 0; death < 5; ++death) {
            Child child([&](int words) {
                boost::asio::io_context io;
                const Result<OpenedJournal> opened = open_sqlite_journal(io, dir.path(), Limits{});
                say(words, opened && write_now(io, *opened->journal, kLlama, "new") ? "." : "!");
                ::raise(SIGKILL);
            });
            CHECK(child.next_word() == '.');
            child.wait();
        }
        boost::asio::io_context io;
        CHECK(open_or_fail(io, dir.path()).records.size() == 2);
    }
    SECTION("deaths long after the start") {
        Limits limits;
        limits.reconnect_grace = Milliseconds(1);
        for (int death = 0; death < 5; ++death) {
            Child child([&](int words) {
                boost::asio::io_context io;
                const Result<OpenedJournal> opened = open_sqlite_journal(io, dir.path(), limits);
                const bool is_settled = run_until(
                    io, [&] { return !std::filesystem::exists(dir / "journal.starting"); });
                say(words, is_settled ? "." : "!");
                ::raise(SIGKILL);
            });
            CHECK(child.next_word() == '.');
            child.wait();
        }
        boost::asio::io_context io;
        CHECK(open_or_fail(io, dir.path()).records.size() == 2);
    }
}

TEST_CASE("two daemons do not share a journal") {
    const TempDir dir;
    boost::asio::io_context io;
    OpenedJournal first = open_or_fail(io, dir.path());
    const Result<OpenedJournal> second = open_sqlite_journal(io, dir.path(), Limits{});
    REQUIRE_FALSE(second);
    CHECK(second.error().code == ErrorCode::AddressInUse);
    CHECK_THAT(second.error().what, Catch::Contains(dir.path() + " is in use by another daemon"));
    // The first one did not notice, and does not hold it longer than it lives.
    CHECK(write_now(io, *first.journal, kLlama, "mine"));
    first.journal.reset();
    CHECK(open_or_fail(io, dir.path()).records[kLlama] == "mine");
}

TEST_CASE("a folder that cannot be made is named") {
    const TempDir dir;
    write_file(dir / "file", "x");
    boost::asio::io_context io;
    const Result<OpenedJournal> opened = open_sqlite_journal(io, dir / "file/state", Limits{});
    REQUIRE_FALSE(opened);
    CHECK_THAT(opened.error().what, Catch::Contains(dir / "file"));
}

TEST_CASE("a record beyond the limit is refused, the others are not") {
    const TempDir dir;
    Limits limits;
    limits.record_bytes_max = 100;
    boost::asio::io_context io;
    const OpenedJournal opened = open_or_fail(io, dir.path(), limits);
    const Result<void> refused = write_now(io, *opened.journal, kLlama, std::string(101, 'x'));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::LimitExceeded);
    CHECK_THAT(refused.error().what, Catch::Contains("run llama has 101 bytes"));
    CHECK(write_now(io, *opened.journal, kLlama, std::string(100, 'x')));
}

TEST_CASE("a journal that is taken away from a running daemon is missed at the next write") {
    const TempDir dir;
    boost::asio::io_context io;
    const OpenedJournal opened = open_or_fail(io, dir.path());
    CHECK(write_now(io, *opened.journal, kLlama, "first"));
    SECTION("deleted") {
        std::filesystem::remove(dir / "journal.db");
    }
    SECTION("replaced") {
        std::filesystem::copy(dir / "journal.db", dir / "copy");
        std::filesystem::rename(dir / "copy", dir / "journal.db");
    }
    const Result<void> lost = write_now(io, *opened.journal, kLlama, "second");
    REQUIRE_FALSE(lost);
    CHECK_THAT(lost.error().what, Catch::Contains("was removed or replaced"));
}

TEST_CASE("a limit of the file's size is said, and writing works again when it is gone") {
    const TempDir dir;
    Child child([&](int words) {
        boost::asio::io_context io;
        ::signal(SIGXFSZ, SIG_IGN);
        const Result<OpenedJournal> opened = open_sqlite_journal(io, dir.path(), Limits{});
        if (!opened || !write_now(io, *opened->journal, kLlama, "small")) {
            say(words, "cannot begin");
            return;
        }
        rlimit limit{};
        ::getrlimit(RLIMIT_FSIZE, &limit);
        const rlim_t before = limit.rlim_cur;
        limit.rlim_cur = 40000;
        ::setrlimit(RLIMIT_FSIZE, &limit);
        const Result<void> failed =
            write_now(io, *opened->journal, kLlama, std::string(100000, 'x'));
        say(words, failed ? "no failure" : failed.error().what);
        limit.rlim_cur = before;
        ::setrlimit(RLIMIT_FSIZE, &limit);
        const bool works = write_now(io, *opened->journal, kLlama, "again").has_value();
        say(words, works ? "; works again" : "; is broken");
    });
    const std::string said = child.all_words();
    child.wait();
    CHECK_THAT(said, Catch::Contains("writing the journal " + (dir / "journal.db") + " failed"));
    CHECK_THAT(said, Catch::EndsWith("; works again"));
    boost::asio::io_context io;
    CHECK(open_or_fail(io, dir.path()).records[kLlama] == "again");
}

TEST_CASE("a full disk is said, its journal can be read, and writing works again with room") {
    const TempDir dir;
    Child child([&](int words) {
        if (::unshare(CLONE_NEWNS) != 0 ||
            ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            ::mount("full", dir.path().c_str(), "tmpfs", 0, "size=512k") != 0) {
            say(words, "no mount");
            return;
        }
        boost::asio::io_context io;
        const std::string folder = dir / "state";
        Result<OpenedJournal> opened = open_sqlite_journal(io, folder, Limits{});
        if (!opened || !write_now(io, *opened->journal, kLlama, std::string(10000, 'l'))) {
            say(words, "cannot begin");
            return;
        }
        // A file of another program takes the room that is left.
        std::ofstream(dir / "hog") << std::string(std::size_t{1} << 20, 'h') << std::flush;
        const Result<void> failed =
            write_now(io, *opened->journal, kLlama, std::string(100000, 'x'));
        say(words, failed ? "no failure" : failed.error().what);
        opened->journal.reset();
        opened = open_sqlite_journal(io, folder, Limits{});
        if (!opened) {
            say(words, "; cannot be opened: " + opened.error().what);
            return;
        }
        say(words, opened->note.empty() && opened->records[kLlama] == std::string(10000, 'l')
                       ? "; is read"
                       : "; lost");
        std::filesystem::remove(dir / "hog");
        const Result<void> works =
            write_now(io, *opened->journal, kLlama, std::string(100000, 'x'));
        say(words, works ? "; works again" : "; is broken: " + works.error().what);
    });
    const std::string said = child.all_words();
    child.wait();
    if (said == "no mount") {
        WARN("SKIPPED: only root may mount a small disk");
        return;
    }
    CHECK_THAT(said, Catch::Contains("free space there"));
    CHECK_THAT(said, Catch::EndsWith("; is read; works again"));
}
