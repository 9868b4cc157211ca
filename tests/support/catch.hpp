#pragma once

// The only place that names Catch2's header, so that another major version is a change of one line.
#include <catch2/catch.hpp>
