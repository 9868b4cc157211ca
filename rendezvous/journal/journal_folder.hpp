#pragma once

#include <string>

#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun::rdzv {

/// The folder of one daemon's journal, held exclusively as long as this lives: what lies in it
/// besides the database, and the database as a file. Blocks as long as the disk does.
class JournalFolder {
public:
    /// Makes the folder (and its parents, for this user only) if it is missing, and locks it.
    /// Failure names it: it cannot be made or written, or another daemon holds it.
    [[nodiscard]] static Result<JournalFolder> open(std::string path);

    [[nodiscard]] std::string database_path() const { return path_ + "/journal.db"; }

    /// How many daemons in a row have called note_start() and never note_settled().
    [[nodiscard]] int starts_without_settling() const;
    /// Both ignore failures: a full disk costs only a count.
    void note_start(int number) const;
    void note_settled() const;

    /// Renames the database and its write-ahead log; the new name. The last one set aside is
    /// replaced if there are many already.
    [[nodiscard]] Result<std::string> set_aside() const;

    /// Names in the folder outlive the machine's power.
    [[nodiscard]] Result<void> sync() const;

    /// Nothing of it needs to be kept: removes all files except databases that were set aside, and
    /// the folder if nothing else is in it. The database is closed.
    [[nodiscard]] Result<void> remove() &&;

private:
    JournalFolder(std::string path, UniqueFd lock)
        : path_(std::move(path)), lock_(std::move(lock)) {}

    std::string path_;
    UniqueFd lock_;
};

}  // namespace ddprun::rdzv
