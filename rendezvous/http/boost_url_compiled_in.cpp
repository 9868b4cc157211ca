// Boost.URL, which Debian has as a shared library only in a package of its own. Nowhere else.
#include <boost/url/src.hpp>
