// Gate one: what a plugin carries in its ELF section ".tessera.plugin", readable without loading
// it. Plain C++ without imports: libtessera, the stamping tool and every plugin's generated source
// include it, each recording the facts of its own compilation.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tessera/build_identity.h"  // generated: TESSERA_VERSION, TESSERA_INTERFACE_FINGERPRINT

#define TESSERA_PLUGIN_SECTION ".tessera.plugin"
#define TESSERA_PLUGIN_STAMP_SYMBOL "tessera_plugin_stamp"
#define TESSERA_PLUGIN_REGISTER_SYMBOL "tessera_plugin_register"

namespace tessera::plugin {

inline constexpr char gate_magic[16] = "tessera plugin\n";
/// Raised when the layout of GateStamp or the way of loading changes.
inline constexpr std::uint32_t gate_abi_epoch = 2;

/// Facts of a compilation that must be equal in the host and the plugin, in this order.
inline constexpr const char* gate_fact_names[] = {
    "compiler",         "standard library", "C++ standard",  "RTTI",
    "exceptions",       "sanitizers",       "pointer width", "C++11 strings",
    "debug containers", "enum size",        "char"};
inline constexpr std::size_t gate_fact_count = sizeof(gate_fact_names) / sizeof(char*);

/// All text ends with NUL; the rest of a field is zero.
struct GateStamp {
  char magic[16];
  std::uint32_t size;  // of this struct; magic, size and abi_epoch keep their places for ever
  std::uint32_t abi_epoch;
  char fingerprint[72];  // of the interfaces that it was compiled against
  char facts[gate_fact_count][32];
  char name[64];
  char version[32];
  char provides[512];  // "style:ColwiseParallel ..."
  char description[256];
  unsigned char digest[16];  // XXH3-128 of the file with this field zero; written after the link
};
static_assert(sizeof(GateStamp) == 976 + gate_fact_count * 32, "no padding, no surprise");

}  // namespace tessera::plugin

#define TESSERA_GATE_TEXT_(x) #x
#define TESSERA_GATE_TEXT(x) TESSERA_GATE_TEXT_(x)

#if defined(__clang__)
#define TESSERA_GATE_COMPILER "clang " TESSERA_GATE_TEXT(__clang_major__)
#define TESSERA_GATE_FEATURE(x) __has_feature(x)
#elif defined(__GNUC__)
#define TESSERA_GATE_COMPILER "gcc " TESSERA_GATE_TEXT(__GNUC__)
#define TESSERA_GATE_FEATURE(x) 0
#else
#define TESSERA_GATE_COMPILER "unknown"
#define TESSERA_GATE_FEATURE(x) 0
#endif

#if defined(_LIBCPP_VERSION)
#define TESSERA_GATE_LIBRARY "libc++ " TESSERA_GATE_TEXT(_LIBCPP_VERSION)
#elif defined(_GLIBCXX_RELEASE)
#define TESSERA_GATE_LIBRARY "libstdc++ " TESSERA_GATE_TEXT(_GLIBCXX_RELEASE)
#else
#define TESSERA_GATE_LIBRARY "unknown"
#endif

#if defined(__GXX_RTTI) || TESSERA_GATE_FEATURE(cxx_rtti)
#define TESSERA_GATE_RTTI "on"
#else
#define TESSERA_GATE_RTTI "off"
#endif

#if defined(__cpp_exceptions)
#define TESSERA_GATE_EXCEPTIONS "on"
#else
#define TESSERA_GATE_EXCEPTIONS "off"
#endif

#if defined(__SANITIZE_ADDRESS__) || TESSERA_GATE_FEATURE(address_sanitizer)
#define TESSERA_GATE_SANITIZE_A "+address"
#else
#define TESSERA_GATE_SANITIZE_A ""
#endif
#if defined(__SANITIZE_THREAD__) || TESSERA_GATE_FEATURE(thread_sanitizer)
#define TESSERA_GATE_SANITIZE_T "+thread"
#else
#define TESSERA_GATE_SANITIZE_T ""
#endif
#if TESSERA_GATE_FEATURE(memory_sanitizer)
#define TESSERA_GATE_SANITIZE_M "+memory"
#else
#define TESSERA_GATE_SANITIZE_M ""
#endif
#if TESSERA_GATE_FEATURE(undefined_behavior_sanitizer)
#define TESSERA_GATE_SANITIZE_U "+undefined"
#else
#define TESSERA_GATE_SANITIZE_U ""
#endif
#if defined(__SANITIZE_ADDRESS__) || TESSERA_GATE_FEATURE(address_sanitizer) || \
    defined(__SANITIZE_THREAD__) || TESSERA_GATE_FEATURE(thread_sanitizer) ||   \
    TESSERA_GATE_FEATURE(memory_sanitizer) || TESSERA_GATE_FEATURE(undefined_behavior_sanitizer)
#define TESSERA_GATE_SANITIZERS \
  TESSERA_GATE_SANITIZE_A       \
  TESSERA_GATE_SANITIZE_T       \
  TESSERA_GATE_SANITIZE_M       \
  TESSERA_GATE_SANITIZE_U
#else
#define TESSERA_GATE_SANITIZERS "none"
#endif

#if defined(_GLIBCXX_USE_CXX11_ABI)
#define TESSERA_GATE_STRINGS TESSERA_GATE_TEXT(_GLIBCXX_USE_CXX11_ABI)
#else
#define TESSERA_GATE_STRINGS "none"
#endif

#if defined(_GLIBCXX_DEBUG)
#define TESSERA_GATE_DEBUG "on"
#else
#define TESSERA_GATE_DEBUG "off"
#endif

#if defined(__CHAR_UNSIGNED__)
#define TESSERA_GATE_CHAR "unsigned"
#else
#define TESSERA_GATE_CHAR "signed"
#endif

namespace tessera::plugin::gate_detail {
enum SmallEnum { small_enum_value };  // one byte under -fshort-enums
}

// The initialiser of GateStamp::facts for the translation unit that expands it.
#define TESSERA_GATE_FACTS                                                                     \
  {TESSERA_GATE_COMPILER,                                                                      \
   TESSERA_GATE_LIBRARY,                                                                       \
   TESSERA_GATE_TEXT(__cplusplus),                                                             \
   TESSERA_GATE_RTTI,                                                                          \
   TESSERA_GATE_EXCEPTIONS,                                                                    \
   TESSERA_GATE_SANITIZERS,                                                                    \
   TESSERA_GATE_TEXT(__SIZEOF_POINTER__) " bytes",                                             \
   TESSERA_GATE_STRINGS,                                                                       \
   TESSERA_GATE_DEBUG,                                                                         \
   {static_cast<char>('0' + sizeof(::tessera::plugin::gate_detail::SmallEnum)), ' ', 'b', 'y', \
    't', 'e', 's', '\0'},                                                                      \
   TESSERA_GATE_CHAR}
