package main

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// mainName is what a cell's main function is called inside: the interpreter runs one named main at every turn.
const mainName = "cellforkMain"

// bodyFollows is a line that users of notebooks in Go write: the rest of the cell is main's body.
var bodyFollows = regexp.MustCompile(`(?m)^[ \t]*%(?:%|main)[ \t]*$`)

// item is a piece of a cell that the interpreter takes in one turn: a declaration, or statements in a row.
type item struct {
	kind   token.Token // IMPORT, CONST, TYPE, VAR or FUNC; ILLEGAL for statements
	start  int
	end    int
	line   int
	name   string // what a FUNC or TYPE declares
	method bool
}

// cell is code cut into items.
type cell struct {
	text    string
	items   []item
	hasMain bool
	amiss   int      // line of a return or defer outside of any function, 0 where there is none
	uses    []string // names that are only ever used as packages are
}

type piece struct {
	offset int
	token  token.Token
	text   string
	line   int
}

// parse cuts a cell into items.  It needs no valid code: what is wrong with an item is told by whoever compiles it.
func parse(code string) cell {
	text := code
	if place := bodyFollows.FindStringIndex(text); place != nil {
		text = text[:place[0]] + "func main() {" + text[place[1]:] + "\n}"
	}
	pieces := scan(text)
	text, renamed := renameMain(text, pieces)
	if renamed {
		pieces = scan(text)
	}
	found := cell{text: text}
	depth, from := 0, 0
	for index, one := range pieces {
		switch one.token {
		case token.LPAREN, token.LBRACK, token.LBRACE:
			depth++
		case token.RPAREN, token.RBRACK, token.RBRACE:
			depth--
		case token.SEMICOLON:
			if depth <= 0 {
				found.add(pieces[from:index], one.offset)
				from, depth = index+1, 0
			}
		}
	}
	found.add(pieces[from:], len(text))
	found.uses = packagesIn(pieces)
	return found
}

func (c *cell) add(pieces []piece, end int) {
	if len(pieces) == 0 {
		return
	}
	if first := pieces[0].token; c.amiss == 0 && (first == token.RETURN || first == token.DEFER) {
		c.amiss = pieces[0].line
	}
	one := item{kind: token.ILLEGAL, start: pieces[0].offset, end: end, line: pieces[0].line}
	switch pieces[0].token {
	case token.PACKAGE:
		return
	case token.IMPORT, token.CONST, token.VAR:
		one.kind = pieces[0].token
	case token.TYPE:
		one.kind = token.TYPE
		if len(pieces) > 1 && pieces[1].token == token.IDENT {
			one.name = pieces[1].text
		}
	case token.FUNC:
		one.name, one.method = declared(pieces)
		if one.name != "" {
			one.kind = token.FUNC
		}
	}
	c.hasMain = c.hasMain || (one.kind == token.FUNC && one.name == mainName && !one.method)
	last := len(c.items) - 1
	if one.kind == token.ILLEGAL && last >= 0 && c.items[last].kind == token.ILLEGAL {
		c.items[last].end = end
		return
	}
	c.items = append(c.items, one)
}

// declared returns the name that a function's declaration gives it, and nothing for a function literal.
func declared(pieces []piece) (name string, method bool) {
	index := 1
	if index < len(pieces) && pieces[index].token == token.LPAREN {
		method = true
		for depth := 0; index < len(pieces); index++ {
			if pieces[index].token == token.LPAREN {
				depth++
			} else if pieces[index].token == token.RPAREN {
				depth--
				if depth == 0 {
					index++
					break
				}
			}
		}
	}
	if index+1 < len(pieces) && pieces[index].token == token.IDENT &&
		(pieces[index+1].token == token.LPAREN || pieces[index+1].token == token.LBRACK) {
		return pieces[index].text, method
	}
	return "", false
}

func scan(text string) []piece {
	var pieces []piece
	var one scanner.Scanner
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(text))
	one.Init(file, []byte(text), nil, 0)
	for {
		position, kind, literal := one.Scan()
		if kind == token.EOF {
			return pieces
		}
		pieces = append(pieces, piece{file.Offset(position), kind, literal, file.Line(position)})
	}
}

func renameMain(text string, pieces []piece) (string, bool) {
	var out strings.Builder
	from := 0
	for index, one := range pieces {
		if one.token != token.IDENT || one.text != "main" {
			continue
		}
		if index > 0 && (pieces[index-1].token == token.PERIOD || pieces[index-1].token == token.PACKAGE) {
			continue
		}
		out.WriteString(text[from:one.offset])
		out.WriteString(mainName)
		from = one.offset + len("main")
	}
	out.WriteString(text[from:])
	return out.String(), from > 0
}

// packagesIn returns names that stand before a period wherever they stand, as the name of a package does.
func packagesIn(pieces []piece) []string {
	count, only := map[string]int{}, map[string]bool{}
	var names []string
	for index, one := range pieces {
		if one.token != token.IDENT || (index > 0 && pieces[index-1].token == token.PERIOD) {
			continue
		}
		dotted := index+1 < len(pieces) && pieces[index+1].token == token.PERIOD
		if count[one.text] == 0 {
			only[one.text] = dotted
			names = append(names, one.text)
		}
		count[one.text]++
		only[one.text] = only[one.text] && dotted
	}
	var found []string
	for _, name := range names {
		if only[name] {
			found = append(found, name)
		}
	}
	return found
}

// imported is one import, with the name that it gives to the package.
type imported struct {
	name string
	path string
}

func (i imported) local() string {
	if i.name != "" {
		return i.name
	}
	return path.Base(i.path)
}

func (i imported) source() string { return "import " + i.name + " " + strconv.Quote(i.path) }

// importsIn returns the imports of an import declaration.
func importsIn(source string) ([]imported, error) {
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p; "+source, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var found []imported
	for _, spec := range file.Imports {
		value, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		one := imported{path: value}
		if spec.Name != nil {
			one.name = spec.Name.Name
		}
		found = append(found, one)
	}
	return found, nil
}

// lastExpression cuts the last statement off if it is an expression whose value is to be shown; where that is a call by
// a plain name, function is the name.
func lastExpression(source string) (before, expression, function string) {
	const head = "package p; func _() {"
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", head+source+"\n}", 0)
	if err != nil {
		return source, "", ""
	}
	body := file.Decls[len(file.Decls)-1].(*ast.FuncDecl).Body.List
	if len(body) == 0 {
		return source, "", ""
	}
	offset := func(at token.Pos) int { return files.Position(at).Offset - len(head) }
	between := func(one ast.Node) string { return source[offset(one.Pos()):offset(one.End())] }
	last, ok := body[len(body)-1].(*ast.ExprStmt)
	if !ok || isPrint(last.X) {
		return source, "", ""
	}
	if call, ok := last.X.(*ast.CallExpr); ok {
		switch call.Fun.(type) {
		case *ast.Ident, *ast.SelectorExpr:
			function = between(call.Fun)
		}
	}
	return source[:offset(last.Pos())], between(last), function
}

// isPrint tells whether an expression is a call that is made for what it does: its count of bytes is of no interest.
func isPrint(expression ast.Expr) bool {
	call, ok := expression.(*ast.CallExpr)
	if !ok {
		return false
	}
	switch function := call.Fun.(type) {
	case *ast.SelectorExpr:
		name := function.Sel.Name
		return strings.HasPrefix(name, "Print") || strings.HasPrefix(name, "Fprint") ||
			strings.HasPrefix(name, "Write")
	case *ast.Ident:
		switch function.Name {
		case "print", "println", "copy", "close", "delete", "panic", "clear":
			return true
		}
	}
	return false
}
