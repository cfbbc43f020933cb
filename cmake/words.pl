#!/usr/bin/env perl
# words.pl: words in the names of types and files of modules/, plugins/ and apps/ that are neither in docs/glossary.md,
# nor in the name of an operator, nor in cmake/names.txt. A name says what a thing is, in words that its readers know.
# Prints each name once, with its place, and words of the list that no name uses any more; exits with 1 where there are any.
#
#   perl cmake/words.pl [ROOT]
use strict;
use warnings;
use File::Basename qw(basename dirname);

my $root = $ARGV[0] // dirname(__FILE__) . '/..';
chdir $root or die "words: no folder $root\n";
my ($list, $glossary) = ('cmake/names.txt', 'docs/glossary.md');

sub lines_of {
  my ($file) = @_;
  open my $in, '<', $file or return;    # a file that was removed and is not committed yet
  return <$in>;
}
# "DeviceMesh", "device_mesh": device, mesh.
sub words_of { return map { lc } $_[0] =~ /[A-Z]+(?![a-z])|[A-Z]?[a-z]+/g }
# A word and what it may be the plural of.
sub forms_of {
  my ($word) = @_;
  my @forms = ($word);
  push @forms, "$1" if $word =~ /^(.*[^s])s$/;
  push @forms, "$1" if $word =~ /^(.*(?:s|x|ch|sh))es$/;
  push @forms, "$1y" if $word =~ /^(.*)ies$/;
  return @forms;
}

# A word: 1, it may be all of a name; 0, only before another word ("first-" in the list).
my (%known, %listed, %used);
for (lines_of($glossary)) {
  my ($term, $name) = /^\| ([^|]+?) \|.*\| ([^|]+) \|$/ or next;
  $known{$_} = 1 for words_of($term), words_of($name);
}
for my $file (split /\n/, qx(git ls-files 'modules/tessera/*.cppm')) {
  $known{$_} = 1 for map { words_of($_) } map { /\bops::(\w+)/g } lines_of($file);
}
for (lines_of($list)) {
  s/#.*//;
  $listed{ s/-$//r } = /-$/ ? 0 : 1 for split;
}
%known = (%known, %listed);

my ($names, @findings) = (0);
# check NAME PLACE IS_TYPE: its words. Files and functions of elements may have names that a participle ends.
sub check {
  my ($name, $place, $is_type) = @_;
  ++$names;
  my @words = words_of($name);
  for my $i (0 .. $#words) {
    my ($form) = grep { exists $known{$_} } forms_of($words[$i]);
    if (!defined $form) {
      push @findings, "$place: '$words[$i]' of $name is in no list: use a word of $glossary or $list";
    } elsif ($is_type && $i == $#words && !$known{$form}) {
      push @findings, "$place: $name ends in '$words[$i]', which says how a thing is: name what it is";
    }
    $used{$form} = 1 if defined $form;
  }
}

my %seen;
for my $file (grep { /\.(?:cpp|cppm|hpp|h|cu|cuh)$/ && -f } split /\n/, qx(git ls-files modules plugins apps)) {
  my $stem = basename($file) =~ s/\..*//r;
  check($stem, "$file:1", 0) unless $seen{"$stem."}++;
  my ($number, $of_elements) = (0, $file =~ m{/functions/});
  for (lines_of($file)) {
    ++$number;
    my ($name) = /^\s*(?:export\s+)?(?:template\s*<.*>\s*)?(?:struct|class|enum class|enum)\s+(?:TESSERA_\w+\s+)?(\w+)(?:\s+final)?\s*(?:[:{]|$)/
      or next;
    check($name, "$file:$number", !$of_elements) unless $name eq lc $name || $seen{$name}++;
  }
}
push @findings, map { "$list: no name has '$_' any more: remove it" } sort grep { !$used{$_} } keys %listed;
print "$_\n" for @findings;
printf "%d names, %d findings\n", $names, scalar @findings;
exit(@findings ? 1 : 0);
