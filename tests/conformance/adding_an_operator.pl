#!/usr/bin/env perl
# Performs the steps of docs/adding-an-operator.md in a copy of the repository, and runs the new operator through the
# conformance suite.
#
#   adding_an_operator.pl REPOSITORY BUILD CMAKE CXX NINJA
#
# A comment before a code block of the page says what to do with it:
#   <!-- file: PATH -->                           a new file
#   <!-- append to the namespace of: PATH -->     before the last closing brace
#   <!-- insert after WORD in: PATH -->           after the line that consists of WORD
# Only the new source and the interfaces that it imports are compiled in the copy. The object becomes a library that is
# loaded into BUILD's test_conformance; the rest of libtessera is the same.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Path qw(make_path);
use File::Temp qw(tempdir);

die "usage: adding_an_operator.pl REPOSITORY BUILD CMAKE CXX NINJA\n" unless @ARGV == 5;
my ($repository, $build, $cmake, $compiler, $ninja) = @ARGV;
$_ = abs_path($_) // die "no such folder\n" for $repository, $build;
my $copy = tempdir(CLEANUP => 1);

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

sub text_of {
  my ($path) = @_;
  open my $file, '<', $path or die "$path: $!\n";
  local $/;
  return scalar <$file>;
}

sub write_file {
  my ($path, $text) = @_;
  make_path(dirname($path));
  open my $file, '>', $path or die "$path: $!\n";
  print $file $text;
  close $file or die "$path: $!\n";
}

run('copy the repository', "cd '$repository' && tar -cf - --exclude=./build --exclude=./.git . | tar -xf - -C '$copy'");

# The steps, as a reader performs them.
my $page = text_of("$copy/docs/adding-an-operator.md");
my ($new, %done);
while ($page =~ /^<!-- (file|append to the namespace of|insert after (\w+) in): (\S+) -->\n```\w+\n(.*?)^```$/msg) {
  my ($step, $word, $file, $block) = ($1, $2, $3, $4);
  if ($step eq 'file') {
    die "$file exists already: the page must add a new file\n" if -e "$copy/$file";
    write_file("$copy/$file", $block);
    $new = $file;
  } else {
    my $text = text_of("$copy/$file");
    my $changed =
      $word ? $text =~ s/^(\s*$word\s*\n)/$1$block/m : $text =~ s/^(.*)(\n\}[^\n]*\n)\z/$1\n$block$2/s;
    die "$file has no place for the block after '$step'\n" unless $changed;
    write_file("$copy/$file", $text);
  }
  ++$done{ $step =~ s/ .*//r };
}
for my $step (qw(file append insert)) {
  die "docs/adding-an-operator.md has not exactly one step '$step'\n" unless ($done{$step} // 0) == 1;
}

my ($family, $name) = $new =~ m{^modules/ops/(\w+)/(\w+)\.cpp$} or die "$new is not a file of a family of operators\n";
run('check the sources', "perl '$copy/cmake/check_sources.pl' '$copy'");
run('configure', "'$cmake' -G Ninja -S '$copy' -B '$copy/build' -DCMAKE_MAKE_PROGRAM='$ninja'"
  . " -DCMAKE_CXX_COMPILER='$compiler' -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DTESSERA_BUILD_TESTS=OFF");
my $object = "modules/CMakeFiles/tessera.dir/ops/$family/$name.cpp.o";
run('compile the operator', "'$ninja' -C '$copy/build' -j 2 $object");
run('link it', "'$compiler' -shared -fuse-ld=lld -o '$copy/libadded.so' '$copy/build/$object' -L'$build/lib' -Wl,-rpath,'$build/lib' -ltessera");

my $cases = 'operators keep what their placement rules promise,gradients of gradients keep it too';
for my $operator ($name, "${name}_backward") {
  my $table = run("check $operator",
    "LD_PRELOAD='$copy/libadded.so' TESSERA_CONFORMANCE_ONLY=$operator TESSERA_CONFORMANCE_TABLE=1 '$build/bin/test_conformance' '$cases'");
  die "the conformance suite accepted no placement of $operator:\n$table\n" unless $table =~ /^$operator\s+[1-9]/m;
}
print "the operator '$name' of docs/adding-an-operator.md passes the conformance suite\n";
