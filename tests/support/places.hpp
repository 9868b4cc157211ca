#pragma once

#include <string>

/// Where the programs of this build are, and the sources. Functions, and not definitions for every
/// test: what a checkout has compiled serves others.
[[nodiscard]] const std::string& bin_dir();
[[nodiscard]] const std::string& source_dir();
