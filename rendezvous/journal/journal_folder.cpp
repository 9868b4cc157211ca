#include "rendezvous/journal/journal_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/os/file_identity.hpp"
#include "base/os/read_files.hpp"

namespace ddprun::rdzv {

namespace {

/// Enough to see what went on; a disk must not fill up with them.
constexpr int kSetAsideMax = 9;
/// The folder may be removed, by the daemon that had it, between our opening and our locking it.
constexpr int kRemovalsMax = 8;

/// Everything up to each slash, then all of it.
Result<void> make_folders(const std::string& path) {
    for (std::size_t end = 0; end != std::string::npos;) {
        end = path.find('/', end + 1);
        const std::string part = path.substr(0, end);
        if (!part.empty() && ::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
            // It may be there and its parent not ours to write.
            const int mkdir_errno = errno;
            struct stat status {};
            if (::stat(part.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
                return system_error(mkdir_errno, "the journal's folder " + part +
                                                     " cannot be made; choose another one");
            }
        }
    }
    return {};
}

}  // namespace

Result<JournalFolder> JournalFolder::open(std::string path) {
    while (path.size() > 1 && path.back() == '/') {
        path.pop_back();
    }
    for (int left = kRemovalsMax; left > 0; --left) {
        if (const Result<void> made = make_folders(path); !made) {
            return made.error();
        }
        const std::string name = path + "/journal.lock";
        UniqueFd lock(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (!lock.is_open()) {
            return system_error(errno, "the journal's lock " + name + " cannot be opened");
        }
        if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
            if (errno == EWOULDBLOCK) {
                return Error{ErrorCode::AddressInUse,
                             fmt::format("the journal in {} is in use by another daemon; stop that "
                                         "one or give this one its own folder",
                                         path)};
            }
            return system_error(errno, "the journal's lock " + name + " cannot be taken");
        }
        if (is_same_file(lock.get(), name)) {
            return JournalFolder(std::move(path), std::move(lock));
        }
    }
    return Error{ErrorCode::AddressInUse,
                 fmt::format("the journal in {} is removed again and again", path)};
}

Result<void> JournalFolder::remove() && {
    for (const char* name :
         {"journal.db", "journal.db-wal", "journal.db-shm", "journal.starting", "journal.lock"}) {
        const std::string file = path_ + "/" + name;
        if (::unlink(file.c_str()) != 0 && errno != ENOENT) {
            return system_error(errno, file + " cannot be removed");
        }
    }
    lock_.reset();
    // A database that was set aside stays, and so does the folder of a daemon that has just come.
    if (::rmdir(path_.c_str()) != 0 && errno != ENOTEMPTY && errno != EEXIST && errno != ENOENT) {
        return system_error(errno, "the journal's folder " + path_ + " cannot be removed");
    }
    return {};
}

int JournalFolder::starts_without_settling() const {
    constexpr std::size_t kDigitsMax = 16;
    const std::string text = read_beginning(path_ + "/journal.starting", kDigitsMax).value_or("");
    int number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    return number;
}

void JournalFolder::note_start(int number) const {
    const UniqueFd file(::open((path_ + "/journal.starting").c_str(),
                               O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    const std::string text = std::to_string(number) + "\n";
    if (file.is_open()) {
        static_cast<void>(!::write(file.get(), text.data(), text.size()));
    }
}

void JournalFolder::note_settled() const {
    ::unlink((path_ + "/journal.starting").c_str());
}

Result<std::string> JournalFolder::set_aside() const {
    std::string aside;
    for (int number = 1; number <= kSetAsideMax; ++number) {
        aside = fmt::format("{}.set-aside-{}", database_path(), number);
        if (::access(aside.c_str(), F_OK) != 0) {
            break;
        }
    }
    for (const std::string_view suffix : {"", "-wal", "-shm"}) {
        const std::string from = fmt::format("{}{}", database_path(), suffix);
        const std::string to = fmt::format("{}{}", aside, suffix);
        ::unlink(to.c_str());
        if (::rename(from.c_str(), to.c_str()) != 0 && errno != ENOENT) {
            return system_error(errno, fmt::format("{} cannot be set aside as {}", from, to));
        }
    }
    return aside;
}

Result<void> JournalFolder::sync() const {
    const UniqueFd folder(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder.is_open() || ::fsync(folder.get()) != 0) {
        return system_error(errno, "the journal's folder " + path_ + " cannot be synchronised");
    }
    return {};
}

}  // namespace ddprun::rdzv
