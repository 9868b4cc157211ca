# Writes the files of the page into a C++ source: cmake -DOUT=FILE -DFOLDER=DIR -DNAMES=a,b -P this

string(REPLACE "," ";" names "${NAMES}")
set(rows "")
foreach(name IN LISTS names)
    file(READ "${FOLDER}/${name}" text)
    if(text MATCHES "\\)ddprun_page\"")
        message(FATAL_ERROR "${name} has the end of the literal that it becomes")
    endif()
    set(type "text/html; charset=utf-8")
    if(name MATCHES "\\.js$")
        set(type "text/javascript; charset=utf-8")
    elseif(name MATCHES "\\.css$")
        set(type "text/css; charset=utf-8")
    elseif(name MATCHES "\\.svg$")
        set(type "image/svg+xml")
    endif()
    set(path "/${name}")
    if(name STREQUAL "index.html")
        set(path "/")
    endif()
    string(APPEND rows "    {\"${path}\", \"${type}\", R\"ddprun_page(${text})ddprun_page\"},\n")
endforeach()
file(WRITE "${OUT}" "#include \"rendezvous/http/page_files.hpp\"

namespace ddprun::rdzv {

namespace {

constexpr PageFile kPageFiles[] = {
${rows}};

}  // namespace

std::span<const PageFile> page_files() {
    return kPageFiles;
}

}  // namespace ddprun::rdzv
")
