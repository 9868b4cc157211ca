#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/output/line_splitter.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

/// torchrun's --duplicate-*-filters for one stream: its lines that hold one of some texts are
/// appended, with a prefix, to a file that all workers of a generation share. Lives on the output
/// thread.
class LineFilter {
public:
    /// Makes the file. `texts` outlives this.
    [[nodiscard]] static Result<LineFilter> open(const std::string& path,
                                                 const std::vector<std::string>& texts,
                                                 std::string prefix, std::size_t line_bytes_max);

    /// Takes bytes of the stream. Fails when the file cannot be written.
    [[nodiscard]] Result<void> feed(std::string_view bytes);

    /// Takes a last line without its end as a line.
    [[nodiscard]] Result<void> finish();

private:
    LineFilter(UniqueFd file, std::string path, const std::vector<std::string>& texts,
               std::string prefix, std::size_t line_bytes_max);
    [[nodiscard]] Result<void> keep(std::string_view lines);

    UniqueFd file_;
    std::string path_;
    const std::vector<std::string>* texts_;
    std::string prefix_;
    LineSplitter splitter_;
    std::string lines_;
};

}  // namespace ddprun::agent
