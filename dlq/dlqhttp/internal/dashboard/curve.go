package dashboard

import (
	"fmt"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
)

// curve is what came and what was closed, hour by hour without gaps, as uPlot takes it: x in seconds.
type curve struct {
	Hours  []int64 `json:"x"`
	In     []int64 `json:"in"`
	Out    []int64 `json:"out"`
	Newest bool    `json:"-"`
}

// curveOf fills the gaps between the hours that a store returns: those of the last hours before now, the one under way among them.
func curveOf(hours []dlq.HourCount, now time.Time, last int) curve {
	first := now.UTC().Truncate(time.Hour).Add(-time.Duration(last-1) * time.Hour)
	c := curve{Hours: make([]int64, last), In: make([]int64, last), Out: make([]int64, last)}
	for i := range last {
		c.Hours[i] = first.Add(time.Duration(i) * time.Hour).Unix()
	}
	for _, h := range hours {
		if i := int(h.Hour.Sub(first) / time.Hour); !h.Hour.Before(first) && i < last {
			c.In[i], c.Out[i] = h.Count, h.Closed
		}
	}
	return c
}

func sum(numbers []int64) (total int64) {
	for _, n := range numbers {
		total += n
	}
	return total
}

// Came and Went are how many in all, for those who cannot see the curve.
func (c curve) Came() int64 { return sum(c.In) }

// Went is how many were closed.
func (c curve) Went() int64 { return sum(c.Out) }

// spark is a small curve of one cause, drawn by the server: the points of a polygon, in a box of sparkWidth by sparkHeight.
type spark struct {
	Area, Line string
	Total      int64
}

const (
	sparkHours  = 7 * 24
	sparkPoints = 28 // of six hours each
	sparkWidth  = 112
	sparkHeight = 24
)

// sparkOf draws the last seven days.
func sparkOf(hours []dlq.HourCount, now time.Time) spark {
	c := curveOf(hours, now, sparkHours)
	var points [sparkPoints]int64
	var top int64 = 1
	for i, n := range c.In {
		p := &points[i*sparkPoints/sparkHours]
		*p += n
		top = max(top, *p)
	}
	var line strings.Builder
	for i, n := range points {
		x := float64(i) * sparkWidth / (sparkPoints - 1)
		y := 1 + float64(sparkHeight-2)*(1-float64(n)/float64(top))
		fmt.Fprintf(&line, "%.1f,%.1f ", x, y)
	}
	text := strings.TrimSpace(line.String())
	return spark{
		Line: text, Area: fmt.Sprintf("0,%d %s %d,%d", sparkHeight, text, sparkWidth, sparkHeight), Total: c.Came(),
	}
}

// perHour is how many an hour there are now: of the hour under way and the share of the one before that is not an hour ago yet.
func perHour(hours []dlq.HourCount, now time.Time, of func(dlq.HourCount) int64) float64 {
	current := now.UTC().Truncate(time.Hour)
	passed := now.Sub(current).Hours()
	rate := 0.0
	for _, h := range hours {
		switch {
		case h.Hour.Equal(current):
			rate += float64(of(h))
		case h.Hour.Equal(current.Add(-time.Hour)):
			rate += float64(of(h)) * (1 - passed)
		}
	}
	return rate
}
