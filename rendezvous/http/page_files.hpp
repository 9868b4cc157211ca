#pragma once

#include <span>
#include <string_view>

namespace ddprun::rdzv {

/// One file of the page that a browser shows: page/ is compiled in, and lasts as long as the
/// program. It has nothing of any job.
struct PageFile {
    std::string_view path;  ///< as it is asked for: "/" or "/page.js"
    std::string_view type;  ///< for Content-Type
    std::string_view bytes;
};

[[nodiscard]] std::span<const PageFile> page_files();

}  // namespace ddprun::rdzv
