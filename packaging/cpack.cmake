# cpack --config packaging/cpack.cmake -G DEB|TGZ: what scripts/package.sh has put into the folder
# DDPRUN_TREE, for the processor DDPRUN_ARCHITECTURE as the format calls it, by DDPRUN_MAINTAINER.
set(CPACK_PACKAGE_NAME ddprun)
set(CPACK_PACKAGE_VERSION "$ENV{DDPRUN_VERSION}")
set(CPACK_PACKAGE_VENDOR "the ddprun maintainers")
set(CPACK_PACKAGE_CONTACT "$ENV{DDPRUN_MAINTAINER}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "elastic launcher for distributed training")
set(CPACK_PACKAGE_DESCRIPTION "Starts distributed trainings as torchrun does, with its flags,
and keeps them alive: a machine that dies, hangs or comes back costs
a restart of the workers in milliseconds, not the job.")
set(CPACK_PACKAGE_FILE_NAME
    "ddprun-$ENV{DDPRUN_VERSION}-linux-$ENV{DDPRUN_ARCHITECTURE}")
set(CPACK_INSTALLED_DIRECTORIES "$ENV{DDPRUN_TREE};/")
set(CPACK_PACKAGING_INSTALL_PREFIX "/")
set(CPACK_PACKAGE_DIRECTORY "$ENV{DDPRUN_OUT}")
set(CPACK_STRIP_FILES OFF)
set(CPACK_THREADS 1)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE "$ENV{DDPRUN_ARCHITECTURE}")
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.28)")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3, libhwloc15")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${CMAKE_CURRENT_LIST_DIR}/deb/conffiles")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
