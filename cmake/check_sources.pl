#!/usr/bin/env perl
# Checks the boundaries between modules: which module may import which, what a facade and an interface may
# contain, which names tests may use, and that pages are short and their links work. Prints every finding; the exit status is 1
# if there is one. Needs only perl's core modules.
#
#   perl cmake/check_sources.pl [ROOT]
use strict;
use warnings;
use File::Basename qw(dirname basename);
use File::Find;

my $root = $ARGV[0] // dirname(__FILE__) . '/..';
chdir $root or die "check_sources: no folder $root\n";

my (@findings, %text);

sub finding { my ($file, $line, $what) = @_; push @findings, "$file:$line: $what" }

# Calls $action->(line number) for each line of $file that matches; the match's groups are in $1, $2...
sub each_match {
  my ($file, $pattern, $action) = @_;
  my $number = 0;
  for (split /\n/, $text{$file}) { ++$number; $action->($number) if /$pattern/ }
}

find({ no_chdir => 1, wanted => sub {
  return $File::Find::prune = 1 if m{^\./(build|install|\.git|\.cache)$};
  return unless -f && /\.(cpp|cppm|hpp|h|cu|cuh|cmake|pl|sh|md|toml|in)$|^\.\/mkdocs\.yml$|CMakeLists\.txt$|^\.\/dev$|^\.\/cmake\//;
  my $name = s{^\./}{}r;
  open my $in, '<', $name or die "check_sources: cannot read $name: $!\n";
  local $/;
  $text{$name} = <$in> // '';
} }, '.');
my @files = sort keys %text;

# The folders whose subfolders are modules, and what the modules' names have before that of their folder: the
# library's, what is beside the program, the program's.
my %kinds = ('modules' => '', 'apps' => '', 'apps/tessera' => 'app.');
my %no_module = map { $_ => 1 } 'apps/tessera', 'apps/examples';
# "modules/base" of "modules/base/error.cpp", if it is in the folder of a module.
sub folder_of { return $_[0] =~ m{^((?:modules|apps/tessera|apps)/[^/]+)/} && !$no_module{$1} ? $1 : undef }

# A module that the build does not know yet gives one finding instead of hundreds.
my %unknown;
for my $folder (grep { defined } map { folder_of($_) } grep { /\.(cpp|cppm)$/ } @files) {
  my ($kind, $name) = (dirname($folder), basename($folder));
  $unknown{$folder} = 1 if ($text{"$kind/CMakeLists.txt"} // '') !~ /^add_subdirectory\($name\)/m;
}
finding(dirname($_) . '/CMakeLists.txt', 1, 'no add_subdirectory(' . basename($_) . ')') for sort keys %unknown;
@files = grep { !$unknown{ folder_of($_) // '' } } @files;

# The order of the modules, and the imports that each of them lists.
my ($count, %place, %folder, %imports) = (0);
for my $kind ('modules', 'apps', 'apps/tessera') {
  each_match($kind . '/CMakeLists.txt', qr/^add_subdirectory\((\w+)\)/, sub {
    my $module = $kinds{$kind} . $1;
    return if $no_module{"$kind/$1"};
    finding("$kind/CMakeLists.txt", $_[0], "add_subdirectory($1): $folder{$module} has this name") if $folder{$module};
    ($place{$module}, $folder{$module}) = ($count++, "$kind/$1");
  }) if exists $text{"$kind/CMakeLists.txt"};
}
my %module_of = reverse %folder;
for my $module (keys %place) {
  my $lists = "$folder{$module}/CMakeLists.txt";
  if (($text{$lists} // '') !~ /tessera_module\(\s*\Q$module\E\s(.*?)\)/s) {
    finding($lists, 1, "no tessera_module($module ...)");
    next;
  }
  my ($stated) = $1 =~ /\bIMPORTS\b([\s\w.]*)/;
  for (split ' ', ($stated // '') =~ s/\b[A-Z]+\b.*//sr) {
    $imports{$module}{$_} = 0;
    finding($lists, 1, "IMPORTS $_: no such module") unless exists $place{$_};
    finding($lists, 1, "IMPORTS $_: $module comes before it (modules/CMakeLists.txt, apps/CMakeLists.txt, apps/tessera/CMakeLists.txt), and may import only modules before itself")
      if ($place{$_} // -1) >= $place{$module};
  }
}

# Modules that a plugin, an app or a test declares for itself.
my %own;
for my $file (@files) {
  next unless $file =~ m{^((?:plugins|apps|tests)/[^/]+)/};
  my $folder = $1;
  each_match($file, qr/^export module tessera\.(\w+)/, sub { $own{$folder}{$1} = 1 });
}

for my $file (grep { /\.(cpp|cppm|hpp|h|cu|cuh)$/ } @files) {
  my ($area, $folder) = $file =~ m{^(\w+)/([^/]+)/} or next;
  my $module = $module_of{ folder_of($file) // '' };
  my $plain = $file =~ m{/kernels/|\.(hpp|h|cu|cuh)$};
  each_match($file, qr/^\s*(?:export\s+)?import\s+([\w.:<"]+)/, sub {
    my ($number, $name) = ($_[0], $1);
    return finding($file, $number, "a header or kernel must not import ($name)") if $plain;
    return if $name =~ /^:/;
    return finding($file, $number, "import $name: only tessera's named modules may be imported")
      unless $name =~ /^(?:tessera\.([\w.]+)|(tessera))$/;
    my $other = $1 // $2;
    if (!defined $module) {
      my $public = exists $place{$other} && ($area eq 'tests' || $file =~ m{^apps/tessera/(?:tools_|first_day_)?main\.cpp$} || $folder{$other} =~ /^modules/);
      finding($file, $number, "import $name: no such public module") unless $public || $own{"$area/$folder"}{$other};
    } elsif (!exists $imports{$module}{$other}) {
      finding($file, $number, "import $name: $other is not in the IMPORTS of $folder{$module}/CMakeLists.txt");
    } else {
      ++$imports{$module}{$other};
    }
  });
  each_match($file, qr/^\s*#\s*include\s+"([^"]+)"/, sub {
    my ($number, $header) = ($_[0], $1);
    finding($file, $number, "#include \"$header\": a plugin or app may use only the public modules")
      if $area =~ /^(plugins|apps)$/ && $header =~ m{(^|/)modules/};
    finding($file, $number, "#include \"$header\": the headers of another module are private")
      if $area eq 'modules' && $header =~ m{(^|/)modules/(\w+)/|\.\./(\w+)/} && ($2 // $3) ne $folder
        && exists $place{ $2 // $3 };
  });
  my $imported = 0;
  each_match($file, qr/^\s*(?:(?:export\s+)?(import)\s|#\s*include\s*(?:<|"catch))/, sub {
    finding($file, $_[0], 'an #include after an import') if $imported && !defined $1;
    $imported ||= defined $1;
  });
}
for my $module (sort keys %imports) {
  for (sort grep { !$imports{$module}{$_} } keys %{ $imports{$module} }) {
    finding("$folder{$module}/CMakeLists.txt", 1, "IMPORTS $_: nothing in $folder{$module} imports it");
  }
}

# Functions of elements: any compiler can read them, so they need nothing of a host's library.
for my $file (grep { m{/functions/[^/]+\.hpp$} || $_ eq 'modules/tensor/include/tessera/math.hpp' } @files) {
  each_match($file, qr{^\s*#\s*include\s+[<"]([^>"]+)}, sub {
    my ($number, $header) = ($_[0], $1);
    finding($file, $number, "#include $header: a function of elements includes math.hpp, other functions, and of the standard library"
        . ' cstddef, cstdint, limits, numbers and type_traits alone')
      unless $header =~ m{^(cstddef|cstdint|limits|numbers|type_traits|tessera/math\.hpp|\w+/functions/\w+\.hpp|\w+\.hpp)$};
  });
}

# range-v3 costs a second for each file, and its header of all views breaks with imports.
for my $file (@files) {
  each_match($file, qr{^#include <(range/v3/\S+)>}, sub {
    my ($number, $header) = ($_[0], $1);
    finding($file, $number, "#include <$header>: only a .cpp file may include range-v3, and only single views")
      unless $file =~ /\.cpp$/ && $header =~ m{^range/v3/view/(?!all\b|span\b)\w+\.hpp$};
  });
}

# Interfaces: what clang 19 miscompiles or confuses, and facades that contain more than their partitions.
for my $file (grep { /\.cppm$/ } @files) {
  each_match($file, qr/^\s*(namespace\s*\{|static\s+\w|.*\bthread_local\b)/, sub {
    finding($file, $_[0], 'an interface must not contain an anonymous namespace, a static entity or thread_local')
      unless /^\s+static/ || m{^\s*//};
  });
  each_match($file, qr/^#include <([a-z_]+)>/, sub {
    finding($file, $_[0], "#include <$1>: an interface must import the standard library from tessera.base:standard");
  }) if defined folder_of($file) && $file !~ m{^(?:modules|apps/tessera)/base/standard\.cppm$};
  if (defined folder_of($file)) {
    my $part = basename($file, '.cppm');
    my ($internal) = ($text{ folder_of($file) . '/CMakeLists.txt' } // '') =~ /\bINTERNAL\b([^A-Z)]*)/;
    my $listed = ($internal // '') =~ /\b\Q$part\E\.cppm/;
    each_match($file, qr/^(export )?module tessera\./, sub {
      finding($file, $_[0], $1 ? 'exported, but listed under INTERNAL' : 'not exported: list it under INTERNAL')
        if defined $1 == $listed;
    });
  }
  my $module = $module_of{ folder_of($file) // '' };
  next unless defined $module && $file eq "$folder{$module}/" . basename($folder{$module}) . ".cppm";
  each_match($file, qr/\S/, sub {
    return if m{^\s*//} || /^export module (tessera\.\Q$module\E|tessera);$/ || m{^export import [\w.:]+; +// \S};
    finding($file, $_[0], "a facade must contain only 'export import :part;  // what it is' lines");
  });
}

# Exported names are in the namespaces that the page of modules has for their module.
my %namespaces;
my $areas = 'docs/design/modules.md';
each_match($areas, qr/^\| `(tessera[\w:]*)` \| ([\w, ]+) \|$/, sub {
  my $namespace = $1;
  for my $module (split /, /, $2) {
    finding($areas, $_[0], "$module: no such module") unless exists $place{$module};
    $namespaces{$module}{$namespace} = $_[0];
  }
}) if exists $text{$areas};
my %used_namespace;
# The module tessera lists names of all others, and base those of the standard library.
for my $file (grep { %namespaces && m{^modules/(?!tessera/).*\.cppm$} && $_ ne 'modules/base/standard.cppm' } @files) {
  my $module = $module_of{ folder_of($file) // '' } // next;
  each_match($file, qr/^export namespace ([\w:]+)/, sub {
    my ($namespace) = $1 =~ /^(tessera(?:::\w+)?)/;
    $used_namespace{$module}{$namespace} = 1;
    finding($file, $_[0], "namespace $namespace: $areas has another one for the module $module")
      unless $namespaces{$module}{$namespace};
  });
}
for my $module (sort keys %namespaces) {
  finding($areas, $namespaces{$module}{$_}, "$module exports nothing in the namespace $_")
    for sort grep { !$used_namespace{$module}{$_} } keys %{ $namespaces{$module} };
}

# State of threads is listed with its reason: a row for each, in the order of the files' uses.
my %listed_state;
my $states = 'docs/design/thread-local.md';
each_match($states, qr{^\| \[[\w./]+\]\(\.\./\.\./(modules/[\w./]+)\)}, sub { push @{ $listed_state{$1} }, $_[0] })
  if exists $text{$states};
for my $file (grep { m{^modules/.*\.(?:cpp|hpp|h)$} } @files) {
  each_match($file, qr{^(?:(?!//).)*\bthread_local\b}, sub {
    finding($file, $_[0], "thread_local: $states has no row for it; pass what it holds, put it into StepContext, or list it with its reason")
      unless shift @{ $listed_state{$file} // [] };
  });
}
for my $file (sort keys %listed_state) {
  finding($states, $_, "$file has no thread_local for this row") for @{ $listed_state{$file} };
}

# Names of Catch2 that only one of the versions on the supported systems has (2 on Debian 12, 3 elsewhere).
# Those that both have, or that the header gives to both, are listed here and explained there.
my $both_versions = qr/^(?:Approx|Contains|EndsWith|Equals|Message|StartsWith|Session)$/;
for my $file (grep { /\.(cpp|hpp|in)$/ && !m{^tests/support/(?:catch\.hpp|main\.cpp)$} } @files) {
  each_match($file, qr/\bCatch::/, sub {
    my $number = $_[0];
    for my $name (/\bCatch::(\w+)/g) {
      finding($file, $number, "Catch::$name: not in both versions of Catch2; add it to tests/support/catch.hpp, and to the list in cmake/check_sources.pl")
        unless $name =~ $both_versions;
    }
  });
  each_match($file, qr{#\s*include\s*<catch2/}, sub {
    finding($file, $_[0], 'include "catch.hpp" of tests/support instead, which has both versions of Catch2');
  });
}

# Helpers that many tests need are written once.
my $support_names = qr/^(?:(?:inline|static)\s+)*(?:(?:class|struct)\s+(Folder)\b(?!;)|[\w:<>]+\s+(error_of|input_error|run_error|contains|on_ranks)\s*\([^;]*\{\s*$)/;
for my $file (grep { m{^tests/(?!support/).*\.(?:cpp|hpp)$} } @files) {
  each_match($file, $support_names, sub {
    finding($file, $_[0], ($1 // $2) . ': tests/support has it (docs/testing-support.md); use that, or give what differs another name');
  });
}

# The config of a run is constant after it was read: who wants another step passes options.
for my $file (grep { m{^apps/tessera/(?!config/).*\.cppm?$} } @files) {
  each_match($file, qr/\bconfig\.\w+\.[\w.]+?\s*(?:[-+*]?=(?!=)|\.(?:clear|erase|insert|emplace|push_back|emplace_back)\()/, sub {
    finding($file, $_[0], 'a config is constant after it was read: pass options (StepSetup) instead');
  });
}

# Every source is built and finished.
for my $file (@files) {
  each_match($file, qr/\bwhat\(\)\)*\s*(?:==|!=|\.(?:find|starts_with|ends_with|contains|substr|compare)\b)|\bstrstr\([^;]*what\(\)/, sub {
    finding($file, $_[0], "an error's text must not decide anything: use its fields()") if $file !~ m{^tests/};
  });
  each_match($file, qr/\b(TO[D]O|FIX[M]E|XX[X]|HA[C]K)\b/, sub { finding($file, $_[0], "$1: finish it") });
  next unless $file =~ m{^(modules|plugins|apps|tests)/.*\.(cpp|cppm|cu)$};
  my ($stem) = basename($file) =~ /^([^.]+)/;
  my $folder = dirname($file);
  $folder = dirname($folder) until $folder eq '.' || exists $text{"$folder/CMakeLists.txt"};
  my $lists = join '', @text{ grep { m{^\Q$folder\E/(.*/)?(CMakeLists\.txt|[^/]+\.cmake)$} } @files };
  finding($file, 1, "no $folder/CMakeLists.txt builds it") unless $lists =~ /\b\Q$stem\E\b/;
}

# Who reads the name of a file of the library or the program knows what it holds. A facade has the name of its module; a
# plugin's folder is a package of its own.
my %named;
push @{ $named{ basename($_) } }, $_ for grep { m{^(?:modules|apps)/.+\.(cpp|cppm|hpp|h)$} && !m{/(\w+)/\1\.cppm$} } @files;
for my $all (grep { @$_ > 2 } @named{ sort keys %named }) {
  finding($all->[$_], 1, "a third file of this name (after $all->[0] and $all->[1]): name it after what it holds") for 2 .. $#$all;
}

# Exported names of the library have a comment: above them, beside them, or above the group of lines that they are in.
# Definitions of members, forward declarations, comparisons and specialisations need none of their own.
sub check_comments {
  my ($file) = @_;
  my ($exported, $inside, $depth, $covered, $number) = (0, 0, 0, 0, 0);
  my @lines = split /\n/, $text{$file};
  for my $line (@lines) {
    ++$number;
    ($exported, $inside, $depth, $covered) = (1, 0, 0, 0), next if $line =~ /^export namespace tessera/;
    next unless $exported;
    $exported = 0, next if $line =~ /^\}/ && !$depth;
    (my $code = $line) =~ s{//.*}{};
    if (!$inside) {
      $covered = 0, next if $line =~ /^\s*$/;
      $covered = 1, next if $line =~ m{^\s*//};
      next if $code =~ /^(namespace|\}|#)/;
      $inside = 1;
      my ($end) = grep { $lines[$_] =~ /[;{]/ } $number - 1 .. $#lines;
      my $declaration = join ' ', @lines[$number - 1 .. $end // $number - 1];
      finding($file, $number, "an exported name has no comment: $code")
        unless $covered || $declaration =~ m{//} || $code =~ /^\s*(class|struct|enum class) \w+;/
        || $declaration =~ /\b\w+::~?\w+\(|operator\b|^\s*(using tessera|extern|template <>)/;
    }
    $depth += ($code =~ tr/{(//) - ($code =~ tr/})//);
    ($inside, $depth) = (0, 0) if $depth <= 0 && $code =~ /[;}]\s*$/;
  }
}
check_comments($_) for grep { m{^modules/.*\.cppm$} } @files;

# Pages: a relative link names an existing file, and its #part a heading in that file.
sub heading_anchor { return lc($_[0]) =~ s/[^\w\s-]//gr =~ s/\s/-/gr }
for my $file (grep { /\.md$/ } @files) {
  my $code = 0;
  each_match($file, qr/^/, sub {
    my $number = $_[0];
    $code = !$code if /^\s*```/;
    return if $code;
    for my $target (/\]\(([^()\s]+)\)/g) {
      next if $target =~ /^[a-z]+:/;
      my ($path, $part) = $target =~ /^([^#]*)(?:#(.*))?$/;
      my $there = $path eq '' ? $file : dirname($file) . "/$path";
      $there =~ s{^\./}{};
      1 while $there =~ s{[^/]+/\.\./}{};
      finding($file, $number, "the link to $target is broken: there is no such file") unless -e $there;
      next unless defined $part && defined $text{$there};
      my @anchors = map { heading_anchor($_) } $text{$there} =~ /^#+\s+(.*?)\s*$/mg;
      finding($file, $number, "no heading #$part in $there") unless grep { $_ eq $part } @anchors;
    }
  });
}

# A page is for one task, and short: at most 150 lines, unless mkdocs.yml lists it with a reason. A section of the
# navigation has at most ten entries.
my $most_lines = 150;
my %long_page;
my ($place_of_list, @sections) = ('');
each_match('mkdocs.yml', qr/^(\s*)(- )?('[^']*'|[^:#\s][^:#]*?)\s*(?::\s*(\S*))?\s*(?:#.*)?$/, sub {
  my ($number, $depth, $entry, $name, $value) = ($_[0], length $1, $2, $3, $4 // '');
  if (!$entry) { $place_of_list = $name; @sections = (); return }
  $long_page{"docs/$name"} = $number if $place_of_list eq 'long_pages';
  return unless $place_of_list eq 'nav';
  pop @sections while @sections && $sections[-1]{depth} >= $depth;
  finding('mkdocs.yml', $number, "'$sections[-1]{name}' has more than ten entries: divide it by task")
    if @sections && ++$sections[-1]{entries} == 11;
  push @sections, {depth => $depth, name => $name, entries => 0} if $value eq '';
}) if exists $text{'mkdocs.yml'};
for my $file (grep { m{^docs/[^/]+\.md$} } @files) {
  my $lines = $text{$file} =~ tr/\n//;
  if (my $listed = delete $long_page{$file}) {
    finding('mkdocs.yml', $listed, "$file has $lines lines (the most is $most_lines): remove it from long_pages") if $lines <= $most_lines;
  } elsif ($lines > $most_lines) {
    finding($file, $most_lines + 1, "a page has at most $most_lines lines (this one $lines): split it by task, or list it under long_pages in mkdocs.yml, if things are looked up in it");
  }
}
finding('mkdocs.yml', $long_page{$_}, "long_pages: there is no $_") for sort keys %long_page;

# Every name that the glossary gives for a term is a word of an interface, and its terms are in order.
if (exists $text{'docs/glossary.md'}) {
  my $interfaces = join "\n", @text{ grep { m{^modules/.*\.(cppm|hpp)$} } @files };
  my $before = '';
  each_match('docs/glossary.md', qr/^\| ([^|]+?) \|.*\| `(\w+)` \|$/, sub {
    my ($number, $term, $name) = ($_[0], lc $1, $2);
    finding('docs/glossary.md', $number, "$name: no interface has this name") unless $interfaces =~ /\b\Q$name\E\b/;
    finding('docs/glossary.md', $number, "'$term' comes before '$before'") if $term lt $before;
    $before = $term;
  });
}

print "$_\n" for @findings;
printf "%d files, %d findings\n", scalar @files, scalar @findings;
exit(@findings ? 1 : 0);
