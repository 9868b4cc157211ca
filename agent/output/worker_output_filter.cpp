#include "agent/output/worker_output_filter.hpp"

#include <algorithm>
#include <utility>

#include "agent/output/worker_output_files.hpp"

namespace ddprun::agent {

LineFilter::LineFilter(UniqueFd file, std::string path, const std::vector<std::string>& texts,
                       std::string prefix, std::size_t line_bytes_max)
    : file_(std::move(file)),
      path_(std::move(path)),
      texts_(&texts),
      prefix_(std::move(prefix)),
      splitter_(with_prefix({}), line_bytes_max) {}

Result<LineFilter> LineFilter::open(const std::string& path, const std::vector<std::string>& texts,
                                    std::string prefix, std::size_t line_bytes_max) {
    Result<UniqueFd> file = open_log(path);
    if (!file) {
        return file.error();
    }
    return LineFilter(std::move(*file), path, texts, std::move(prefix), line_bytes_max);
}

Result<void> LineFilter::feed(std::string_view bytes) {
    lines_.clear();
    splitter_.feed(bytes, lines_);
    return keep(lines_);
}

Result<void> LineFilter::finish() {
    lines_.clear();
    splitter_.finish(lines_);
    return keep(lines_);
}

Result<void> LineFilter::keep(std::string_view lines) {
    std::string kept;
    while (!lines.empty()) {
        const std::string_view line = lines.substr(0, lines.find('\n') + 1);
        lines.remove_prefix(line.size());
        const bool is_wanted = std::any_of(
            texts_->begin(), texts_->end(),
            [line](const std::string& text) { return line.find(text) != std::string_view::npos; });
        if (is_wanted) {
            kept.append(prefix_).append(line);
        }
    }
    return append_to_log(file_.get(), kept, path_);
}

}  // namespace ddprun::agent
