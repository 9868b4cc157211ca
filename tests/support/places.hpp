#pragma once

#include <string>

/// The folders of this build's programs and of the sources. Functions, and not definitions for each
/// test: objects that one checkout has compiled serve others.
[[nodiscard]] const std::string& bin_dir();
[[nodiscard]] const std::string& source_dir();
