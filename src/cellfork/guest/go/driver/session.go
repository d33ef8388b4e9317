package main

import (
	"context"
	"errors"
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"path"
	"reflect"
	"regexp"
	"sort"
	"strings"
	"sync"
	"unsafe"

	"github.com/traefik/yaegi/interp"
	"github.com/traefik/yaegi/stdlib"
	"github.com/traefik/yaegi/stdlib/syscall"
	"github.com/traefik/yaegi/stdlib/unrestricted"
	yaegiunsafe "github.com/traefik/yaegi/stdlib/unsafe"
)

var (
	panicLine = regexp.MustCompile(`^(\d+):(\d+): panic: (.*)\n?$`)
	position  = regexp.MustCompile(`^(?:_\.go:)?(\d+):(\d+): `)
)

// preferred are the packages meant where two of the standard library have one name.
var preferred = map[string]string{"rand": "math/rand", "template": "text/template", "scanner": "text/scanner", "pprof": "runtime/pprof"}

// session is an interpreter with what the cells so far have left in it.
type session struct {
	interpreter *interp.Interpreter
	answers     *answers
	interrupts  chan os.Signal
	imports     map[string]string // name to path
	standard    map[string]string
	trace       *trace
}

// trace takes what the interpreter says of a panic, and passes the rest on to standard error.
type trace struct {
	mutex sync.Mutex
	lines []string
}

func (t *trace) Write(text []byte) (int, error) {
	if found := panicLine.FindSubmatch(text); found != nil {
		t.mutex.Lock()
		t.lines = append(t.lines, fmt.Sprintf("cell:%s: %s", found[1], found[3]))
		t.mutex.Unlock()
		return len(text), nil
	}
	return os.Stderr.Write(text)
}

func (t *trace) take() []string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	lines := t.lines
	t.lines = nil
	return lines
}

func newSession(answers *answers, interrupts chan os.Signal) *session {
	s := &session{answers: answers, interrupts: interrupts, imports: map[string]string{}, trace: &trace{}}
	s.interpreter = interp.New(interp.Options{Unrestricted: true, Stderr: s.trace})
	for _, symbols := range []interp.Exports{
		stdlib.Symbols, syscall.Symbols, yaegiunsafe.Symbols, unrestricted.Symbols, displays(answers),
	} {
		if err := s.interpreter.Use(symbols); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	s.standard = map[string]string{}
	for _, symbols := range []interp.Exports{stdlib.Symbols, syscall.Symbols, unrestricted.Symbols} {
		for key := range symbols {
			full := path.Dir(key)
			name := path.Base(full)
			if other, taken := s.standard[name]; !taken || len(full) < len(other) {
				s.standard[name] = full
			}
		}
	}
	for name, full := range preferred {
		s.standard[name] = full
	}
	s.standard["cellfork"] = "cellfork"
	return s
}

func (s *session) run(request request) {
	for len(s.interrupts) > 0 {
		<-s.interrupts // meant for a cell that has ended
	}
	restore := setEnvironment(request.Envs)
	s.trace.take()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		select {
		case <-s.interrupts:
			cancel()
		case <-ended:
		}
	}()
	s.answers.begin(request.Token)
	failure := s.evaluate(ctx, request.Code)
	close(ended)
	interrupted := ctx.Err() != nil
	cancel()
	restore()
	done := answer{Op: "done", Status: "ok"}
	switch {
	case interrupted:
		done.Status = "interrupted"
	case failure != nil:
		done.Status, done.Name, done.Value, done.Traceback = "error", failure.name, failure.value, failure.trace
	}
	s.answers.send(done)
}

// failure is what is told of a cell that did not run through.
type failure struct{ name, value, trace string }

// evaluate compiles and runs a cell, item by item; the first that fails ends it.
func (s *session) evaluate(ctx context.Context, code string) *failure {
	cell := parse(code)
	if cell.amiss > 0 {
		return compileError("return and defer belong into a function: write one, or %% on a line before", cell.amiss)
	}
	for _, one := range cell.items {
		if one.kind == token.IMPORT {
			if failed := s.declareImports(ctx, cell.text[one.start:one.end], one.line); failed != nil {
				return failed
			}
		}
	}
	s.importUsed(ctx, cell.uses)
	for index, one := range cell.items {
		source := cell.text[one.start:one.end]
		switch one.kind {
		case token.IMPORT:
		case token.ILLEGAL:
			if failed := s.statements(ctx, source, one.line, index == len(cell.items)-1); failed != nil {
				return failed
			}
		default:
			if one.kind == token.TYPE || (one.kind == token.FUNC && !one.method) {
				s.forget(one.name)
			}
			if _, failed := s.eval(ctx, source, one.line); failed != nil {
				return failed
			}
		}
	}
	if cell.hasMain {
		_, failed := s.eval(ctx, mainName+"()", 1)
		return failed
	}
	return nil
}

func (s *session) statements(ctx context.Context, source string, line int, last bool) *failure {
	before, expression, function := source, "", ""
	if last {
		before, expression, function = lastExpression(source)
	}
	if strings.TrimSpace(before) != "" {
		if _, failed := s.eval(ctx, before, line); failed != nil {
			return failed
		}
	}
	if expression == "" {
		return nil
	}
	silent := function != "" && s.returnsNothing(ctx, function)
	value, failed := s.eval(ctx, expression, line+strings.Count(before, "\n"))
	if failed == nil && !silent && !(function != "" && isNil(value)) {
		s.show(value)
	}
	return failed
}

// returnsNothing tells whether a call by this name leaves no value; the interpreter would give that of something else.
func (s *session) returnsNothing(ctx context.Context, name string) bool {
	value, failed := s.eval(ctx, name, 1)
	return failed == nil && value.IsValid() && value.Kind() == reflect.Func && value.Type().NumOut() == 0
}

func isNil(value reflect.Value) bool {
	return value.IsValid() && value.Kind() == reflect.Interface && value.IsNil()
}

func (s *session) declareImports(ctx context.Context, source string, line int) *failure {
	specs, err := importsIn(source)
	if err != nil {
		return compileError(err.Error(), 0)
	}
	for _, spec := range specs {
		if s.imports[spec.local()] == spec.path {
			continue
		}
		if _, failed := s.eval(ctx, spec.source(), line); failed != nil {
			return failed
		}
		s.imports[spec.local()] = spec.path
	}
	return nil
}

// importUsed imports packages of the standard library that are used and that nobody has imported.
func (s *session) importUsed(ctx context.Context, names []string) {
	for _, name := range names {
		full, known := s.standard[name]
		if !known || s.imports[name] != "" || s.has(name) {
			continue
		}
		if _, failed := s.eval(ctx, imported{path: full}.source(), 1); failed == nil {
			s.imports[name] = full
		}
	}
}

func (s *session) eval(ctx context.Context, source string, line int) (value reflect.Value, failed *failure) {
	defer func() {
		if thrown := recover(); thrown != nil {
			failed = compileError(fmt.Sprint(thrown), line)
		}
	}()
	if strings.HasPrefix(strings.TrimSpace(source), "func") && isLiteral(source) {
		source = "(" + strings.TrimLeft(source, " \t\r\n")
		source = closeLiteral(source)
	}
	// Its lines are those of the cell, also when a later cell calls what it declares.
	program, err := s.interpreter.Compile(strings.Repeat("\n", line-1) + source)
	if err == nil && ctx.Err() == nil {
		value, err = s.interpreter.ExecuteWithContext(ctx, program)
	}
	if ctx.Err() != nil {
		return value, &failure{name: "Interrupted"}
	}
	if err == nil {
		return value, nil
	}
	var thrown interp.Panic
	if errors.As(err, &thrown) {
		return value, panicked(thrown, s.trace.take())
	}
	var list scanner.ErrorList
	if errors.As(err, &list) {
		texts := make([]string, len(list))
		for index, one := range list {
			texts[index] = fmt.Sprintf("%d: %s", one.Pos.Line, one.Msg)
		}
		return value, compileError(strings.Join(texts, "\n"), 0)
	}
	return value, compileError(err.Error(), line)
}

// panicked tells of a panic of the code, with the lines at which functions were when it came.
func panicked(thrown interp.Panic, lines []string) *failure {
	value := fmt.Sprint(thrown.Value)
	if inner, ok := thrown.Value.(reflect.Value); ok && inner.IsValid() && inner.CanInterface() {
		value = fmt.Sprint(inner.Interface())
	}
	text := "panic: " + value
	if len(lines) > 0 {
		text += "\n\n" + strings.ReplaceAll(strings.Join(lines, "\n"), mainName, "main")
	}
	return &failure{"panic", value, text}
}

func compileError(text string, line int) *failure {
	text = strings.ReplaceAll(text, mainName, "main")
	if found := position.FindStringSubmatch(text); found != nil && line > 0 {
		text = found[1] + ": " + text[len(found[0]):]
	} else if line > 0 {
		text = fmt.Sprintf("%d: %s", line, text)
	}
	trace := make([]string, 0, 4)
	for _, one := range strings.Split(text, "\n") {
		trace = append(trace, "cell:"+one)
	}
	return &failure{"CompileError", text, strings.Join(trace, "\n")}
}

// has tells whether a name is declared at the top level.
func (s *session) has(name string) bool {
	_, found := s.symbols()[name]
	return found
}

// forget lets a name be declared anew: the interpreter keeps the first declaration of a type and says nothing.
func (s *session) forget(name string) {
	if symbols := reflectedSymbols(s.interpreter); symbols.IsValid() && name != "" {
		symbols.SetMapIndex(reflect.ValueOf(name), reflect.Value{})
	}
}

func (s *session) symbols() map[string]struct{} {
	found := map[string]struct{}{}
	if symbols := reflectedSymbols(s.interpreter); symbols.IsValid() {
		for _, key := range symbols.MapKeys() {
			found[key.String()] = struct{}{}
		}
	}
	return found
}

// reflectedSymbols returns the interpreter's symbols of the package main, which it does not export.
func reflectedSymbols(interpreter *interp.Interpreter) reflect.Value {
	scopes := opened(reflect.ValueOf(interpreter).Elem().FieldByName("scopes"))
	scope := scopes.MapIndex(reflect.ValueOf("main"))
	if !scope.IsValid() || scope.IsNil() {
		return reflect.Value{}
	}
	return opened(scope.Elem().FieldByName("sym"))
}

func opened(field reflect.Value) reflect.Value {
	return reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem()
}

// setEnvironment sets variables and returns what puts back those that were there.
func setEnvironment(envs map[string]string) (restore func()) {
	before := map[string]*string{}
	names := make([]string, 0, len(envs))
	for name := range envs {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		before[name] = nil
		if value, found := os.LookupEnv(name); found {
			before[name] = &value
		}
		os.Setenv(name, envs[name])
	}
	return func() {
		for name, value := range before {
			if value == nil {
				os.Unsetenv(name)
			} else {
				os.Setenv(name, *value)
			}
		}
	}
}

// isLiteral tells whether statements begin with a function literal, which the interpreter would take for a declaration.
func isLiteral(source string) bool {
	name, _ := declared(scan(source))
	return name == ""
}

// closeLiteral ends the parenthesis that was opened before a function literal, behind its body.
func closeLiteral(source string) string {
	depth := 0
	pieces := scan(source)
	for index, one := range pieces {
		switch one.token {
		case token.LBRACE, token.LPAREN, token.LBRACK:
			depth++
		case token.RBRACE, token.RPAREN, token.RBRACK:
			depth--
			next := index + 1
			if one.token == token.RBRACE && depth == 1 && (next == len(pieces) || pieces[next].token != token.LBRACE) {
				return source[:one.offset+1] + ")" + source[one.offset+1:]
			}
		}
	}
	return source
}
