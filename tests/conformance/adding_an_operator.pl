#!/usr/bin/env perl
# Performs the steps of docs/adding-an-operator.md in a copy of the repository, and runs the new operator through the
# conformance suite.
#
#   adding_an_operator.pl REPOSITORY BUILD CMAKE CXX NINJA
#
# A comment before a code block of the page says what to do with it:
#   <!-- insert before "TEXT" in: PATH -->        before the only place of TEXT
#   <!-- replace "TEXT" in: PATH -->              the only place of TEXT
#   <!-- append to the namespace of: PATH -->     before the last closing brace
# Only the sources that follow from the list of functions, and the interfaces that they import, are compiled in the copy.
# Their objects take the place of BUILD's in another libtessera, which is loaded into BUILD's test_conformance.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Path qw(make_path);
use File::Temp qw(tempdir);
use FindBin;
use lib "$FindBin::RealBin/../support";
use Files qw(text_of);

die "usage: adding_an_operator.pl REPOSITORY BUILD CMAKE CXX NINJA\n" unless @ARGV == 5;
my ($repository, $build, $cmake, $compiler, $ninja) = @ARGV;
$_ = abs_path($_) // die "no such folder\n" for $repository, $build;
my $copy = tempdir(CLEANUP => 1);

sub write_file {
  my ($path, $text) = @_;
  make_path(dirname($path));
  Files::write_file($path, $text);
}

sub run {
  my ($what, @command) = @_;
  my $begin = time;
  open my $pipe, '-|', "@command 2>&1" or die "$what: $!\n";
  my $output = do { local $/; <$pipe> } // '';
  close $pipe;
  die "$what failed:\n$output\n" if $?;
  printf "%-28s %4d s\n", $what, time - $begin;
  return $output;
}

run('copy the repository', "cd '$repository' && tar -cf - --exclude=./build --exclude=./.git . | tar -xf - -C '$copy'");

# The steps, as a reader performs them.
my $page = text_of("$copy/docs/adding-an-operator.md");
my (%files, $name);
while ($page =~ /^<!-- (?:(insert before|replace) "([^"]+)" in|append to the namespace of): (\S+) -->\n```\w+\n(.*?)^```$/msg) {
  my ($step, $place, $file, $block) = ($1, $2, $3, $4);
  my $text = text_of("$copy/$file");
  if (defined $step) {
    my $found = () = $text =~ /\Q$place\E/g;
    die "$file has '$place' $found times, not once\n" unless $found == 1;
    $block =~ s/\n\z// if $step eq 'replace';
    my $with = $step eq 'replace' ? $block : "$block$place";
    $text =~ s/\Q$place\E/$with/;
  } else {
    $text =~ s/^(.*)(\n\}[^\n]*\n)\z/$1\n$block$2/s or die "$file has no namespace\n";
  }
  write_file("$copy/$file", $text);
  $files{$file} = 1;
  $name = $1 if $block =~ /\bname = "(\w+)"/;
}
die "docs/adding-an-operator.md changes " . keys(%files) . " files, not two\n" unless keys(%files) == 2;
die "docs/adding-an-operator.md names no function\n" unless defined $name;

run('check the sources', "perl '$copy/cmake/check_sources.pl' '$copy'");
run('configure', "'$cmake' -G Ninja -S '$copy' -B '$copy/build' -DCMAKE_MAKE_PROGRAM='$ninja'"
  . " -DCMAKE_CXX_COMPILER='$compiler' -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DTESSERA_BUILD_TESTS=OFF");
my @objects = map { "modules/CMakeFiles/tessera.dir/ops/pointwise/$_.cpp.o" } qw(unary kernels/unary);
run('compile the function', "'$ninja' -C '$copy/build' -j 2 @objects");

# The command that has linked BUILD's library, with these two objects instead of its own.
my ($link) = grep { m{-shared.* -o lib/libtessera\.so} } split /\n/, run('find the link', "'$ninja' -C '$build' -t commands tessera");
die "no command of $build links libtessera\n" unless defined $link;
for my $object (@objects) {
  $link =~ s/(?<=\s)\Q$object\E(?=\s)/$copy\/build\/$object/ or die "libtessera has no $object\n";
}
$link =~ s{ -o lib/libtessera\.so\S*}{ -o $copy/libtessera.so};
write_file("$copy/link.sh", "cd '$build'\n$link\n");
run('link it', "sh '$copy/link.sh'");

my $cases = 'operators keep what their placement rules promise,gradients of gradients keep it too';
for my $operator ($name, "${name}_backward") {
  my $table = run("check $operator",
    "LD_PRELOAD='$copy/libtessera.so' TESSERA_CONFORMANCE_ONLY=$operator TESSERA_CONFORMANCE_TABLE=1 '$build/bin/test_conformance' '$cases'");
  die "the conformance suite accepted no placement of $operator:\n$table\n" unless $table =~ /^$operator\s+[1-9]/m;
}
print "the function '$name' of docs/adding-an-operator.md passes the conformance suite\n";
