#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "agent/output/lost_lines.hpp"
#include "base/instant.hpp"
#include "base/os/machine_identity.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

/// A run's note about itself: `<log-dir>/<job>_<8 hex>/run.json`, written when its first worker is
/// started and once more when its ddprun exits.
struct RunNote {
    std::string program;
    std::string job;
    std::string hostname;
    int pid = 0;                  ///< of its ddprun
    std::string rendezvous = {};  ///< HOST:PORT,… of its daemons; empty: its ddprun is it
    Milliseconds started{0};      ///< Unix time
    std::optional<Milliseconds> ended = {};
    std::optional<int> exit_code = {};        ///< of its ddprun
    std::string text = {};                    ///< of its verdict; empty: there was none
    std::optional<Milliseconds> saving = {};  ///< how long its workers took to leave when asked
    std::vector<LostLog> lost = {};           ///< of its workers' logs, by rank
    MachineIdentity machine = {};  ///< of its ddprun; of an older one only the name is known

    bool operator==(const RunNote&) const = default;
};
/// The file in such a folder that has what `/status` said when the workers had ended.
inline constexpr const char* kStateName = "status.json";

/// Adds the field `log_lost` of such a note, and of /status, if anything is lost.
void add_lost(nlohmann::ordered_json& object, const std::vector<LostLog>& lost);
/// Returns the content of that field.
[[nodiscard]] std::vector<LostLog> lost_in(const nlohmann::json& note);
[[nodiscard]] nlohmann::ordered_json run_note_json(const RunNote& note);
/// Returns nothing if `json` is no such note.
[[nodiscard]] std::optional<RunNote> parse_run_note(std::string_view json);
/// That of the run in the folder `run`; none: it has none.
[[nodiscard]] std::optional<RunNote> read_run_note(const std::string& run);

/// `<job>_<8 hex>`, as the folder of a run is called; of `job`, if that is not empty.
[[nodiscard]] bool is_run_name(std::string_view name, std::string_view job = {});

/// The folder of the run that this process writes. It is locked for as long as this object lives:
/// who finds it unlocked on the same machine knows that nothing more is written there.
class RunFolder {
public:
    /// Touches nothing. `path` may be empty: then nothing is ever kept.
    RunFolder(std::string path, RunNote note);

    /// Workers write here from now on: locks the folder (made if it is missing), writes run.json
    /// and makes `<log-dir>/latest` a link to it. Not for a second time. Fails with the first of
    /// these that cannot be done; the others are done all the same.
    [[nodiscard]] Result<void> begin(Milliseconds now);

    /// The ddprun exits: writes run.json anew, if the folder exists; on a full disk into the room
    /// that begin() has reserved, LogLimits::run_note_bytes_max.
    [[nodiscard]] Result<void> end(Milliseconds now, int exit_code, const std::string& text,
                                   std::optional<Milliseconds> saving = {},
                                   std::vector<LostLog> lost = {});

    [[nodiscard]] bool has_begun() const { return has_begun_; }

private:
    [[nodiscard]] Result<void> write_note() const;

    std::string path_;
    RunNote note_;
    bool has_begun_ = false;
    UniqueFd lock_;
};

enum class RunState {
    Held,  ///< its ddprun writes it
    Over,  ///< and says how it ended
    Dead,  ///< its ddprun is gone and has not said how: it was killed
    /// Another machine made it, and it does not say that it is over. On a network's file system
    /// that machine's lock cannot be seen here.
    Elsewhere,
    Unclear,  ///< whether a ddprun holds it cannot be known here, nor on which machine
};

/// One run in a log folder.
struct FoundRun {
    std::string path;
    std::string name;
    RunNote note;  ///< of a run of an older ddprun only `started`
    RunState state = RunState::Unclear;
};

enum class RunsOf { ThisUser, Everybody };

/// The runs in `log_dir`, of `job` if that is not empty, the one that began last first. The state
/// of another user's run, or of a link to one, stays Unclear: its lock is left alone.
[[nodiscard]] std::vector<FoundRun> runs_in(const std::string& log_dir, const std::string& job = {},
                                            RunsOf whose = RunsOf::ThisUser);

/// The run in `folder`, which may lie anywhere; as of runs_in(). Returns nothing if the folder is
/// no run's, or another user's.
[[nodiscard]] std::optional<FoundRun> run_in(const std::string& folder);

/// How long the workers of the newest run of `job` that knows it took to leave when asked; none: no
/// run in `log_dir` does.
[[nodiscard]] std::optional<Milliseconds> last_saving(const std::string& log_dir,
                                                      const std::string& job);

/// The result of remove_runs().
struct RunsRemoved {
    std::vector<std::string> removed;  ///< names
    std::vector<std::string> left;     ///< "NAME: why", which run
    std::vector<std::string> unsure;   ///< "NAME: why", which may run on another machine, for ever
    std::vector<std::string> failed;   ///< "NAME: why", of the others that had to go
};

/// Removes `runs` (of runs_in(), the newest first) but for the newest `kept`, what a ddprun holds
/// or may hold on another machine, and what is not this user's. Checks each again, follows no
/// link, and leaves no link `latest` that leads nowhere. `only_says`: removes nothing, and reports
/// what it would.
[[nodiscard]] RunsRemoved remove_runs(const std::string& log_dir, const std::vector<FoundRun>& runs,
                                      std::size_t kept, bool only_says);

}  // namespace ddprun::agent
