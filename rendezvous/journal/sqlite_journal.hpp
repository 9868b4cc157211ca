#pragma once

#include <map>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>

#include "base/limits.hpp"
#include "rendezvous/journal/journal.hpp"

namespace ddprun::rdzv {

struct OpenedJournal {
    std::unique_ptr<Journal> journal;
    std::map<JobId, std::string> records;  ///< newest of each run, as they were written
    std::string
        note;  ///< for people, if not empty: what of an earlier journal is not used, and why
};

/// The journal of one daemon in a folder of its own machine: one SQLite database, written on its
/// own thread, in one transaction for all records that wait.
///
/// The destructor writes what waits, then closes: it takes as long as the disk does. Afterwards
/// nothing is called back. While a write is under way the loop that it was made with does not run
/// out of work.
///
/// A daemon has come through its start when the first record is written, when it has lived for
/// Limits::reconnect_grace, or when it closes its journal: whichever is first. One that dies before
/// has died on this journal, perhaps because of it.
///
/// Opens the journal in `folder`, which is made (only for this user) if it is missing, and reads
/// it. A database that is damaged, of another program or version, or that a daemon died on
/// Limits::journal_crashes_max times in a row is set aside under another name and a new one is
/// begun: the note says so. Blocks as long as the disk does.
///
/// Failure names the folder: another daemon uses it, or it cannot be written. Nothing is left open.
[[nodiscard]] Result<OpenedJournal> open_sqlite_journal(boost::asio::io_context& io,
                                                        std::string folder, const Limits& limits);

/// Removes a journal that is closed and no longer needed, with its folder: only what was
/// set aside stays, and a journal that another daemon uses by now.
[[nodiscard]] Result<void> remove_sqlite_journal(std::string folder);

}  // namespace ddprun::rdzv
