#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "tests/support/cluster.hpp"

/// Functions that read from the kernel the state of the processes that a test has started.
namespace ddprun::test {

/// All living descendants of this process. Orphans are among them: it is a subreaper.
inline std::vector<pid_t> descendants() {
    std::vector<std::pair<pid_t, pid_t>> parents;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        const pid_t pid = std::atoi(entry.path().filename().c_str());
        const std::string stat = pid > 0 ? read_file(entry.path() / "stat") : "";
        const std::size_t name_end = stat.rfind(')');
        if (name_end != std::string::npos && name_end + 4 < stat.size()) {
            parents.emplace_back(pid, std::atoi(stat.c_str() + name_end + 4));
        }
    }
    std::set<pid_t> family = {::getpid()};
    for (bool has_grown = true; has_grown;) {
        has_grown = false;
        for (const auto& [pid, parent] : parents) {
            has_grown = (family.contains(parent) && family.insert(pid).second) || has_grown;
        }
    }
    family.erase(::getpid());
    return {family.begin(), family.end()};
}

/// The inodes of the sockets that `pid` holds, as text.
inline std::set<std::string> socket_inodes(pid_t pid) {
    std::set<std::string> inodes;
    std::error_code gone;
    const std::filesystem::path folder = "/proc/" + std::to_string(pid) + "/fd";
    for (std::filesystem::directory_iterator at(folder, gone), end; !gone && at != end;
         at.increment(gone)) {
        std::error_code closed;
        const std::string target = std::filesystem::read_symlink(at->path(), closed).string();
        if (target.rfind("socket:[", 0) == 0) {
            inodes.insert(target.substr(8, target.size() - 9));
        }
    }
    return inodes;
}

struct ListeningSocket {
    pid_t pid = 0;
    std::string address;  ///< hexadecimal, as the kernel's table has it
    bool is_wildcard = false;
};

/// Every TCP socket on which one of `pids` listens, by the kernel's tables.
inline std::vector<ListeningSocket> listening_sockets(const std::vector<pid_t>& pids) {
    constexpr const char* kListen = "0A";
    std::vector<ListeningSocket> found;
    for (const pid_t pid : pids) {
        const std::set<std::string> inodes = socket_inodes(pid);
        for (const char* table : {"/net/tcp", "/net/tcp6"}) {
            std::istringstream lines(read_file("/proc/" + std::to_string(pid) + table));
            std::string line;
            std::getline(lines, line);  // names of the columns
            while (std::getline(lines, line)) {
                std::istringstream columns(line);
                std::string skipped;
                std::string local;
                std::string state;
                std::string inode;
                columns >> skipped >> local >> skipped >> state;
                for (int i = 4; i < 10; ++i) {
                    columns >> inode;
                }
                if (state == kListen && inodes.contains(inode)) {
                    const std::string address = local.substr(0, local.find(':'));
                    found.push_back(
                        {pid, address, address.find_first_not_of('0') == std::string::npos});
                }
            }
        }
    }
    return found;
}

}  // namespace ddprun::test
